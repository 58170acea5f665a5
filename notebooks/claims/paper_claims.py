"""paper_claims.py - what papers of 2025-26 claim of RLVR, tried on tiny models. The command: see claim.py.

Notebook 6 shows what came out. The names with _smollm2 need its folder: python -m notebooks.models.get_smollm2 smollm2
"""

from notebooks.claims import model_claims, signal_claims, smollm2_claims
from notebooks.claims.claim import main

ALL = [*signal_claims.CLAIMS, *model_claims.CLAIMS, *smollm2_claims.CLAIMS]
CLAIMS = {claim.name: claim for claim in ALL}

if __name__ == "__main__":
    main(ALL)
