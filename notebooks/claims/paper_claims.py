"""paper_claims.py - what papers of 2025-26 claim of RLVR, tried on tiny models. The command: see claim.py.

Notebook 10 shows what came out. The names with _smollm2 need its folder: python -m notebooks.models.get_smollm2 smollm2
"""

from notebooks.claims import model_claims, signal_claims
from notebooks.claims.claim import main

CLAIMS = {claim.name: claim for claim in [*signal_claims.CLAIMS, *model_claims.CLAIMS]}

if __name__ == "__main__":
    main(CLAIMS.values())
