"""sgd.py - plain SGD in place of AdamW.

Source:  "Do We Need Adam? Surprisingly Strong and Sparse Reinforcement Learning with SGD in LLMs"
         (arXiv 2602.07729): abstract and introduction.
Formula: weight - lr * gradient, the gradient clipped to norm 1.
Changes: no moments are kept: 8 bytes a weight, 4.8 of 9.5 GB at Qwen3-0.6B's shape. A step is as
         long as its gradient, which Adam would scale to about lr for each weight, so the rate is
         another one: 0.3 for the tiny model, where AdamW takes 4e-4.
Missing: the paper's rates and models; a rate for a real model, which nobody here has tried. One
         that is too low shows late: after 50 steps at 0.1 nearly all greedy answers are right, and
         .59 of the sampled ones.
"""

import torch

from rlvr import GRPO


class SGD(GRPO):
    def optimizer(self, parameters, lr):
        return torch.optim.SGD(parameters, lr)
