"""peers.py - adapters that call the functions of twelve projects: check.py adapters/peers.py:nanochat.

The functions come from an installed package, or from a checkout at the named commit (KIT_SRC, see board.py). If a file
cannot be imported without packages for a GPU, its functions are taken from the file unchanged, with stubs for what
would need a real model. Each adapter is a function that returns what the project offers, so that a project is loaded
only when somebody asks for it.
"""

import asyncio
import sys
from contextlib import nullcontext
from functools import partial
from importlib.metadata import distribution

import torch
from board import CHECKOUTS, Stub, functions, gradient_of, needs, offers, row_by_row


def one_width(prompt_lengths):
    """Return the length of the prompts, for projects in which all prompts of a batch are equally long."""
    needs(len(set(prompt_lengths.tolist())) == 1, "all prompts of a batch have one width")
    return int(prompt_lengths[0])


def grpo_zero():
    """policy-gradient/GRPO-Zero d41bb48 (2025-04-18): rollout and normalize_rewards_per_group of grpo.py.

    Both are taken whole from their file, with a model that gives the wanted logits or tokens. update_policy trains
    everything that rollout returns. The project samples at temperature 1, makes one update per batch and has no KL.
    """
    given = {"Episode": Stub, "print": Stub()}
    given["dataclasses"] = Stub(replace=lambda old, **new: Stub(old, **new))
    grpo = functions("GRPO-Zero/grpo.py", "rollout", "normalize_rewards_per_group", **given)

    def advantages(rewards):
        groups = enumerate(rewards.tolist())
        episodes = [Stub(prefix=[p], reward=reward) for p, group in groups for reward in group]
        found = grpo.normalize_rewards_per_group(episodes)
        return torch.tensor([one.reward for one in found], dtype=torch.float32).view_as(rewards)

    @row_by_row
    def completion_mask(prompt, completion, stop_id, pad_id):
        """Let rollout draw the given ids, from logits that leave no choice."""
        sure = torch.nn.functional.one_hot(torch.cat([prompt, completion])[None, 1:]) * 1e4
        batch = Stub(prefix_tokens=[0], numbers=[0], target=[0], prefix=[[]])
        batch["prefix_token_ids"] = [prompt.tolist()]
        tokenizer = Stub(eos_token_id=stop_id, pad_token_id=pad_id, detokenize=lambda _: [])
        model = Stub(inference=lambda tokens, at: sure[:, at : at + tokens.size(1)])
        what = model, batch, tokenizer, len(completion), 1, Stub(reward=0, reward_info=0)
        episodes = grpo.rollout(*what, torch.device("cpu"), torch.bfloat16)
        return [1] * len(episodes[0].generated_token_ids)

    return offers(advantages, completion_mask)


def minimind():
    """jingyaogong/minimind d65ef2c (2026-08-21): grpo_train_epoch of trainer/train_grpo.py, the engine's log-probs, and
    rollout_single of trainer/train_agent.py.

    The epoch is taken whole from its file, because importing the file sets up a run. It runs on one batch and gets
    completions, rewards and log-probs. loss_type is grpo (cispo is the default). The project samples at temperature
    0.8, with top-p 0.85 and top-k 50. On a GPU, autocast computes the softmax in fp32.
    """
    given = dict.fromkeys(("lm_config", "optimizer", "scheduler"), Stub())
    given["autocast_ctx"] = nullcontext()
    settings = {"device": "cpu", "loss_type": "grpo", "grad_clip": 0, "accumulation_steps": 1}
    settings |= {"log_interval": 2, "save_interval": 2}
    engine = functions("minimind/trainer/rollout_engine.py", "compute_per_token_logps")
    # Rewards that become these advantages when they are standardised.
    Wanted = type("Wanted", (Stub,), {"__sub__": lambda rewards, mean: rewards.advantages})

    def run_epoch(models, ids, old_logp, mask, rewards, size, F, clip=0.2, beta=0.0, **more):
        """Run grpo_train_epoch with these completions and rewards. size: completions per prompt; F:
        torch.nn.functional."""
        start = ids.size(1) - mask.size(1)
        rollout = Stub(output_ids=ids, completion_ids=ids[:, start:], completion_mask=mask)
        rollout |= {"per_token_logps": old_logp, "prompt_lens": torch.full_like(ids[:, 0], start)}
        tokenizer = Stub(input_ids=ids, attention_mask=ids, pad_token_id=-1, eos_token_id=-1)
        args = Stub(settings, num_generations=size, epsilon=clip, beta=beta)
        own = {"args": args, "tokenizer": Stub(tokenizer, **more), "model": models[0], "F": F}
        own["calculate_rewards"] = lambda *_: rewards
        file = functions("minimind/trainer/train_grpo.py", "grpo_train_epoch", **given, **own)
        engine = Stub(rollout=lambda **_: rollout)
        file.grpo_train_epoch(0, [{"prompt": 0}], 0, engine, models[1], 0)

    def gradient(ids, logp, old_logp, ref_logp, rewards, mask, size=1, **more):
        """Return the gradient by the log-probs (B, R), for completions ids[:, 1:]."""
        leaf = logp.detach().clone().requires_grad_()
        pairs = [torch.nn.functional.pad(one, (0, 1))[..., None] for one in (leaf, ref_logp)]
        models = [Stub(logits=one.expand(-1, -1, int(ids.max()) + 1)) for one in pairs]
        F = Stub(log_softmax=lambda logits, dim: logits)
        run_epoch(models, ids, old_logp, mask, rewards, size, F, **more)
        return leaf.grad

    def step(model, reference, kl_coef, ids, mask, rewards, rank=None):
        """Run the epoch with the engine's own log-probs; 0 is the pad."""
        mask = mask[:, int(mask[0].argmax()) :]
        old_logp = engine.compute_per_token_logps(model, ids, mask.size(1), ids != 0)
        if rank is not None:
            model = torch.nn.parallel.DistributedDataParallel(model)
        models = model, reference or model
        what = ids, old_logp, mask, rewards.flatten(), rewards.size(1), torch.nn.functional
        run_epoch(models, *what, beta=kl_coef, pad_token_id=0)

    def advantages(rewards):
        zeros = torch.zeros(rewards.numel(), 1)
        ids = zeros.long().repeat(1, 2)
        found = gradient(ids, *[zeros] * 3, rewards.flatten(), zeros + 1, rewards.size(1))
        return -len(zeros) * found.view_as(rewards)

    def loss(logp, old_logp, advantages, mask, clip):
        needs(clip[0] == clip[1], "one epsilon")
        zeros = torch.zeros(len(logp))
        groups = Stub(mean=lambda **_: zeros, std=lambda **_: zeros + 1 - 1e-4)
        rewards = Wanted(advantages=advantages, view=lambda *_: groups)
        ids = torch.zeros(len(logp), logp.size(1) + 1, dtype=torch.long)
        return (logp * gradient(ids, logp, old_logp, logp, rewards, mask, clip=clip[0])).sum()

    def completion_mask(ids, prompt_lengths, stop_id, pad_id):
        """Mark the tokens for which the KL has a gradient; the engine's own mask is all ones."""
        start = one_width(prompt_lengths)
        ids = ids[:, start - 1 :]
        ones = torch.ones(ids[:, 1:].shape)
        rewards = torch.zeros(len(ids))
        found = gradient(ids, ones, ones, 0 * ones, rewards, ones, beta=1.0, eos_token_id=stop_id)
        return torch.nn.functional.pad((found != 0).float(), (start - 1, 0))

    def logprobs(logits, ids, temperature, top_p=1.0, top_k=0):
        needs(logits.dtype == torch.float32, "under autocast, on a GPU: not run")
        return engine.compute_per_token_logps(Stub(logits=logits), ids, ids.size(1) - 1)

    def padded_logprobs(model, ids, attention_mask):
        return engine.compute_per_token_logps(model, ids, ids.size(1) - 1, attention_mask)

    def turns(prompt, sampled, replies, tokenizer):
        """Run rollout_single with tools that give these replies. The template joins texts, and adds stops to turns."""
        left = list(sampled)
        said = list(replies)
        stop = tokenizer.words[sampled[0][-1]]

        def template(messages, **_):
            ends = {"assistant": stop}
            return "".join(one["content"] + ends.get(one["role"], "") for one in messages)

        def rollout(**_):
            ids = left.pop(0)
            found = dict.fromkeys(("completion_ids", "per_token_logps"), torch.tensor([ids]))
            return Stub(found, completions=[tokenizer.decode(ids[:-1])])

        class Names(Stub):
            def __call__(self, text, **_):
                ids = torch.tensor([tokenizer.encode(text)])
                return Stub(input_ids=ids, attention_mask=ids)

        own = {"execute_tool": lambda *_: said.pop(0), "json": Stub(dumps=lambda it, **_: it)}
        own["parse_tool_calls"] = lambda _: [{}] * bool(said)
        agent = functions("minimind/trainer/train_agent.py", "rollout_single", **own)
        names = Names(apply_chat_template=template, pad_token_id=-1, eos_token_id=sampled[0][-1])
        messages = [{"role": "user", "content": tokenizer.decode(prompt)}]
        found = agent.rollout_single(Stub(rollout=rollout), names, messages, [], device="cpu")
        return found[2] + found[3], [0] * (len(prompt) - 1) + found[4]

    return offers(advantages, loss, completion_mask, logprobs, padded_logprobs, turns, step)


def nano_aha_moment():
    """McGill-NLP/nano-aha-moment 6cd0306 (2025-07-07): utils.py, and functions of nano_r1_script.py.

    create_training_episodes, compute_token_log_probs and compute_pg_loss are taken from their files (which need
    deepspeed and vllm), with a model that gives the wanted logits. The project makes one update per batch. vllm stops
    at a stop token.
    """
    utils = functions("nano-aha-moment/utils.py", "compute_token_log_probs")
    script = "nano-aha-moment/nano_r1_script.py"

    def advantages(rewards):
        P, G = rewards.shape
        left = rewards.flatten().tolist()
        given = {"compute_reward": lambda *_: (left.pop(0), {})}
        create = functions(script, "create_training_episodes", **given).create_training_episodes
        rows = {"samples": [{"input_ids": [5]}] * P, "all_generations": [[6]] * (P * G)}
        rows |= {"all_finish_reasons": ["stop"] * (P * G), "GENERATIONS_PER_SAMPLE": G}
        episodes, _ = create(tokenizer=Stub(batch_decode=lambda ids, **_: ids), **rows)
        return torch.tensor(episodes["all_advantages"], dtype=torch.float32).view(P, G)

    def pg_loss(logp, ref_logp, advantages, mask, whole, beta):
        """Call compute_pg_loss, with these as the model's log-probs."""
        given = {"compute_token_log_probs": lambda *_: logp * mask}
        given["close_to_zero"] = lambda *_: torch.zeros(())
        wide = torch.nn.functional.pad(mask, (1, 0))
        batch = dict.fromkeys(("input_ids", "attention_mask", "labels", "labels_mask"), wide)
        batch |= {"advantages": advantages[:, None] * wide, "ref_log_probs": ref_logp}
        compute = functions(script, "compute_pg_loss", **given).compute_pg_loss
        return compute(None, batch, whole.sum(), 1.0, beta)[0]

    def loss(logp, old_logp, advantages, mask, clip, batch_mask):
        needs(torch.equal(logp, old_logp), "one update of a batch, so nothing clips")
        return pg_loss(logp, logp, advantages, mask, batch_mask, 0.0)

    def padded_logprobs(model, ids, attention_mask, temperature=1.0):
        inputs = Stub(input_ids=ids, attention_mask=attention_mask, labels=ids.clone())
        inputs["labels_mask"] = ids >= 0
        return utils.compute_token_log_probs(model, inputs, temperature)

    def logprobs(logits, ids, temperature):
        return padded_logprobs(Stub(logits=logits), ids, ids, temperature)

    def kl(logp, ref_logp):
        """Return the loss of one token whose advantage is 0."""
        ones = torch.ones_like(logp)
        return pg_loss(logp, ref_logp, torch.zeros(1), ones, ones, 1.0).view_as(logp)

    return offers(advantages, loss, logprobs, padded_logprobs, kl, gradient_of(kl))


def nanochat():
    """karpathy/nanochat 92d63d4 (2026-07-03): Engine.generate_batch, and get_batch of scripts/chat_rl.py.

    Both are taken whole from their files (importing the script starts a run). The sampled tokens, the task and its
    rewards are replaced. The loss is code of the script and not a function, so it is not offered.
    """
    generate_batch = functions("nanochat/nanochat/engine.py", "generate_batch").generate_batch

    def batch(rows, start, stop_id, rewards):
        """Return what get_batch yields if these rows are sampled and get these rewards."""

        def generate(tokens, num_samples, **_):
            return ((column, [1] * len(column)) for column in zip(*(row[start:] for row in rows)))

        tokenizer = Stub(render_for_completion=lambda _: rows[0][:start])
        tokenizer |= {"encode_special": lambda _: stop_id, "get_bos_token_id": lambda: -1}
        engine = Stub(tokenizer=tokenizer, generate=generate)
        engine["generate_batch"] = lambda tokens, **more: generate_batch(engine, tokens, **more)
        given = {"ddp_rank": 0, "step": 0, "ddp_world_size": 1, "device": "cpu"}
        given["args"] = Stub(dict.fromkeys(("num_samples", "device_batch_size"), len(rows)))
        given["args"]["max_new_tokens"] = len(rows[0])
        given["train_task"] = Stub({0: "a problem"}, reward=lambda *_: rewards.pop(0))
        given |= {"engine": engine, "tokenizer": tokenizer, "model": Stub()}
        get = functions("nanochat/scripts/chat_rl.py", "get_batch", **given)
        return next(get.get_batch())

    def advantages(rewards):
        return torch.stack([batch([[5, 6]] * len(row), 1, 0, row.tolist())[-1] for row in rewards])

    def completion_mask(ids, prompt_lengths, stop_id, pad_id):
        start = one_width(prompt_lengths)
        targets = batch(ids.tolist(), start, stop_id, [0.0] * len(ids))[2]
        mask = (targets != -1).float()
        return torch.nn.functional.pad(mask, (0, ids.size(1) - 1 - mask.size(1)))

    return offers(advantages, completion_mask)


def open_instruct():
    """allenai/open-instruct e6c3044 (2026-08-20): compute_grpo_loss and forward_for_logprobs of grpo_utils.py,
    estimate_kl, log_softmax_and_gather and masked_mean.

    The functions are taken from their files (the package needs vllm and deepspeed), with the defaults dapo, token and
    estimator 2. The advantages are code of an actor and not a function, so they are not offered.
    """
    folder = "open-instruct/open_instruct/"
    models = functions(folder + "model_utils.py", "estimate_kl", "log_softmax_and_gather")
    given = {"model_utils": models, "GRPOLossType": Stub(dapo="dapo"), "GRPOExperimentConfig": 0}
    grpo = functions(folder + "grpo_utils.py", "compute_grpo_loss", "forward_for_logprobs", **given)
    masked_mean = functions(folder + "rl_utils.py", "masked_mean").masked_mean

    def terms(logp, old_logp, ref_logp, advantages, clip):
        config = Stub(loss_fn="dapo", clip_lower=clip[0], clip_higher=clip[1], kl_estimator=2)
        arguments = logp, (logp - old_logp).exp(), advantages[:, None], ref_logp, config
        return grpo.compute_grpo_loss(*arguments, torch.ones_like(logp))

    def loss(logp, old_logp, advantages, mask, clip, batch_mask):
        values = terms(logp, old_logp, None, advantages, clip)[0]
        return masked_mean(values, mask, None, batch_mask.sum())

    def logprobs(logits, ids, temperature):
        return grpo.forward_for_logprobs(Stub(logits=logits), ids, None, None, -1, temperature)[0]

    def kl(logp, ref_logp):
        return terms(logp, logp.detach(), ref_logp, torch.zeros(len(logp)), (0.2, 0.2))[2]

    return offers(loss, logprobs, kl, gradient_of(kl))


def openrlhf_core():
    """openrlhf 0.11.2: its own functions, run on small tensors, with torch 2.13.0.

        pip install --no-deps openrlhf==0.11.2

    The functions of openrlhf.models.loss and openrlhf.models.utils are taken from their files, with their defaults (the
    package imports deepspeed, ray and more). A method of a trainer computes the advantages; it is not called here.
    """
    folder = distribution("openrlhf").locate_file("openrlhf/models")
    names = "log_probs_from_logits", "compute_approx_kl", "masked_mean"
    utils = functions(folder / "utils.py", *names)
    given = {"masked_mean": utils.masked_mean}
    PolicyLoss = functions(folder / "loss.py", "PolicyLoss", **given).PolicyLoss

    def loss(logp, old_logp, advantages, mask, clip, batch_mask):
        policy = PolicyLoss(clip_eps_low=clip[0], clip_eps_high=clip[1])
        wide = advantages[:, None].expand_as(mask)
        return policy(logp, old_logp, wide, mask, batch_num_tokens=float(batch_mask.sum()))[0]

    def correction(old_logp, sampled_logp, mask, level, how, low, high):
        """With advantages of 1, on policy, a token's gradient is minus its weight."""
        needs(how == "mask" or level == "token", "refused: clip requires the level token")
        mode = "clip" if how == "truncate" else how
        options = {"is_correction_level": level.removesuffix("uence"), "is_correction_mode": mode}
        policy = PolicyLoss(**options, is_correction_threshold=[low, high])
        logp = old_logp.clone().requires_grad_()
        rows = logp, old_logp, torch.ones_like(mask), mask, sampled_logp
        return -torch.autograd.grad(policy(*rows, batch_num_tokens=1.0)[0], logp)[0]

    def logprobs(logits, ids, temperature):
        """log_probs_from_logits divides the logits in place."""
        why = "Actor.forward makes them fp32 before this call (actor.py:267)"
        needs(logits.dtype == torch.float32, why)
        return utils.log_probs_from_logits(logits[:, :-1].clone(), ids[:, 1:], temperature)

    def kl(logp, ref_logp):
        return utils.compute_approx_kl(logp, ref_logp, kl_estimator="k3")

    return offers(loss, correction, logprobs, kl, gradient_of(kl))


def prime_rl():
    """PrimeIntellect-ai/prime-rl 559b447 (2026-08-21): compute_loss and default_loss_fn of trainer/rl/loss.py, and
    GRPO's score_group of orchestrator/algo.

    The functions are taken from their files (the package needs vllm and more). The loss has a trust region on
    probabilities and does not clip the ratio, so loss is called on policy only. Its term log(ratio)^2 has no gradient
    there, and is left out of trust_region.
    """
    folder = "prime-rl/src/prime_rl/"
    losses = functions(folder + "trainer/rl/loss.py", "default_loss_fn", "compute_loss")

    def advantages(rewards):
        given = {"iter_trainable_traces": lambda traces: ((None, one) for one in traces)}
        given["assign_advantages"] = lambda trace, value: trace.update(advantage=value)
        grpo = functions(folder + "orchestrator/algo/grpo.py", "score_group", **given)
        rows = [[Stub(reward=reward) for reward in group] for group in rewards.tolist()]
        for traces in rows:
            asyncio.run(grpo.score_group(Stub(length_penalty=None), traces))
        return torch.tensor([[trace.advantage for trace in traces] for traces in rows])

    def computed(logp, sampled_logp, advantages, mask, delta, kl_tau, batch_mask):
        config = Stub(dppo_mask_high=delta, dppo_mask_low=delta, adv_tau=1.0, kl_tau=kl_tau)
        wide = advantages[:, None].expand_as(mask).unbind()
        rows = [logp.unbind(), sampled_logp.unbind(), None, wide, mask.bool().unbind()]
        run = partial(losses.default_loss_fn, loss_config=config)
        return losses.compute_loss(*rows, None, None, None, run, int(batch_mask.sum()), 1, 1)[0]

    def loss(logp, old_logp, advantages, mask, clip, batch_mask):
        needs(logp.equal(old_logp), "a trust region on probabilities, and no clip of the ratio")
        return computed(logp, old_logp, advantages, mask, 0.2, 1e-3, batch_mask)

    def trust_region(logp, sampled_logp, advantages, mask, delta):
        return computed(logp, sampled_logp, advantages, mask, delta, 0.0, mask)

    return offers(advantages, loss, trust_region)


def reasoning_from_scratch():
    """rasbt/reasoning-from-scratch f79c9cd (2026-04-21): sample_response, sequence_logprob and reward_rlvr of ch06.py,
    the grader of ch03.py, and compute_advantage_stats of ch07.py.

    The modules are imported from the checkout and need requests, sympy and tokenizers. ch07.py also plots, so its
    function is taken from the file. The project samples at temperature 0.8 with top-p 0.9.
    """
    sys.path.append(str(CHECKOUTS / "reasoning-from-scratch"))
    from reasoning_from_scratch import ch03, ch06

    stats = functions(ch06.__file__.replace("ch06", "ch07"), "compute_advantage_stats")
    # A model that gives these logits, one at each call.
    Model = type("Model", (Stub,), {"__call__": lambda self, *_, **__: self.logits.pop(0)[None]})

    def advantages(rewards):
        needs(rewards.size(1) > 1, "num_rollouts is at least 2")
        return torch.stack([stats.compute_advantage_stats(group)[0] for group in rewards.tolist()])

    @row_by_row
    def completion_mask(prompt, completion, stop_id, pad_id):
        """Let sample_response draw the given ids, from logits that leave no choice. All after the prompt is trained."""
        sure = torch.nn.functional.one_hot(completion[:, None]) * 1e4
        model = Model(logits=[*sure, sure[0]], cfg={"n_layers": 1})
        tokenizer = Stub(encode=lambda prompt: prompt, eos_token_id=stop_id)
        what = model, tokenizer, prompt.tolist(), "cpu", len(sure)
        return [1] * (len(ch06.sample_response(*what)[0]) - len(prompt))

    def logprobs(logits, ids, temperature, top_p=1.0):
        """sequence_logprob sums over a completion, so each column is a difference of two sums."""

        def sum_from(start):
            rows = zip(logits, ids)
            return [ch06.sequence_logprob(Model(logits=[row]), one, start) for row, one in rows]

        sums = [sum_from(start) for start in range(1, ids.size(1) + 1)]
        return -torch.tensor(sums).diff(dim=0).T

    def reward(text, truth, finished):
        needs(finished, "a reward sees the text only")
        return ch06.reward_rlvr(text, truth)

    def grade(answer, truth):
        return ch03.grade_answer(answer, truth)

    return offers(advantages, completion_mask, logprobs, reward, grade, extract=ch03.get_last_boxed)


def rlhf_book():
    """natolambert/rlhf-book a66b0bf (2026-08-21): loss.py, and utils.py and rollout.py of code/policy_gradients.

    The functions are taken from their files (the package needs reasoning_gym and more), with the defaults of grpo.yaml:
    kl3, and sampling at temperature 0.6 with top-p and top-k. For the mask, _generate_experience runs whole, with a
    model that generates the given ids.
    """
    folder = "rlhf-book/code/policy_gradients/"
    losses = functions(folder + "loss.py", "get_approx_kl", "GRPOLoss")
    utils = functions(folder + "utils.py", "compute_standardized_advantages", "compute_log_probs")

    def advantages(rewards):
        return torch.stack([utils.compute_standardized_advantages(group) for group in rewards])

    def loss(logp, old_logp, advantages, mask, clip):
        given = Stub(log_probs_old=old_logp, advantages=advantages[:, None], action_mask=mask)
        return losses.GRPOLoss(*clip, 0.0, "kl3")(logp, given)

    def completion_mask(ids, prompt_lengths, stop_id, pad_id):
        start = one_width(prompt_lengths)
        stopped = (ids[:, start:-1] == stop_id).cumsum(1) > 0
        padded = (ids[:, start + 1 :][stopped] == pad_id).all()
        needs(padded, "generate writes padding behind a stop")
        names = "compute_rewards compute_advantages compute_log_probs compute_values".split()
        given = dict.fromkeys([*names, "apply_reward_kl"], Stub())
        given |= {"SYSTEM_PROMPTS": Stub(DeepSeekZero=""), "Experience": Stub}
        tokenizer = Stub(input_ids=ids[:, :start], pad_token_id=pad_id)
        tokenizer["batch_decode"] = lambda *_, **__: [""]
        me = Stub(cfg=Stub(num_rollouts=1), tokenizer=tokenizer)
        me["model"] = Stub(device="cpu", generate=lambda **_: ids)
        run = functions(folder + "rollout.py", "_generate_experience", **given)
        found = run._generate_experience(me, Stub(question="", answer=""))
        return found["action_mask"].float()

    def logprobs(logits, ids, temperature, top_p=1.0, top_k=0):
        return utils.compute_log_probs(Stub(logits=logits, device="cpu"), ids, ids)

    def padded_logprobs(model, ids, attention_mask):
        return utils.compute_log_probs(model, ids, attention_mask)

    def kl(logp, ref_logp):
        return losses.get_approx_kl("kl3", logp, ref_logp, None)

    return offers(advantages, loss, completion_mask, logprobs, padded_logprobs, kl, gradient_of(kl))


def slime():
    """THUDM/slime 624b824 (2026-08-21): utils/ppo_utils.py, the mean of backends/megatron_utils/cp_utils.py, and the
    rewards of ray/rollout.py.

    The functions are taken from their files (the package needs megatron and sglang), and run on one rank. The loss of a
    batch is a sum over completions; here it is divided by their number. The logits are divided by the temperature
    before this call.
    """
    names = "calculate_log_probs_and_entropy", "compute_policy_loss", "compute_approx_kl"
    ppo = functions("slime/slime/utils/ppo_utils.py", *names)
    folder = "slime/slime/backends/megatron_utils/"
    losses = functions(folder + "loss.py", "vanilla_tis_function", "icepop_function")
    mpu = Stub(get_context_parallel_world_size=lambda: 1)
    mean_of = functions(folder + "cp_utils.py", "get_sum_of_sample_mean", mpu=mpu)
    rewards_of = functions("slime/slime/ray/rollout.py", "_post_process_rewards")

    def advantages(rewards):
        P, G = rewards.shape
        args = Stub(advantage_estimator="grpo", rewards_normalization=True)
        args |= {"n_samples_per_prompt": G, "rollout_batch_size": P, "grpo_std_normalization": True}
        left = rewards.flatten().tolist()
        samples = [Stub(get_reward_value=lambda _: left.pop(0))] * (P * G)
        me = Stub(custom_reward_post_process_func=None, args=args)
        return torch.tensor(rewards_of._post_process_rewards(me, samples)[1]).view(P, G)

    def loss(logp, old_logp, advantages, mask, clip):
        wide = advantages[:, None].expand_as(logp)
        values, _ = ppo.compute_policy_loss(old_logp - logp, wide, *clip)
        lengths = [logp.size(1)] * len(logp)
        total = mean_of.get_sum_of_sample_mean(lengths, lengths, list(mask))
        return total(values.flatten()) / len(logp)

    def correction(old_logp, sampled_logp, mask, level, how, low, high):
        """truncate is --use-tis, and mask is icepop_function, passed as --custom-tis-function-path."""
        needs(level == "token", "of tokens only")
        function = losses.vanilla_tis_function if how == "truncate" else losses.icepop_function
        rows = {"train_log_probs": [*old_logp], "rollout_log_probs": [*sampled_logp]}
        args = Stub(tis_clip_low=low, tis_clip=high)
        one = torch.ones_like(mask).flatten()
        return function(args, pg_loss=one, **rows, loss_masks=0)[0].view_as(mask)

    def logprobs(logits, ids, temperature):
        pairs = zip(logits[:, :-1] / temperature, ids[:, 1:])
        return torch.cat([ppo.calculate_log_probs_and_entropy(*pair, None)[0].T for pair in pairs])

    def kl(logp, ref_logp):
        return ppo.compute_approx_kl(logp, ref_logp, "k1")

    return offers(advantages, loss, correction, logprobs, kl, gradient_of(kl))


def tiny_grpo():
    """open-thought/tiny-grpo eafedd7 (2025-01-23): loss.py, and rollout, group_advantages and log-probs of train.py.

    The functions are taken from their files (train.py needs packages for a GPU). rollout runs whole, with a model that
    generates the given ids. The project samples at temperature 1 and pads with the stop token.
    """
    losses = functions("tiny-grpo/loss.py", "approx_kl_divergence", "GRPOLoss")
    names = "group_advantages", "sequences_log_probs", "rollout"
    train = functions("tiny-grpo/train.py", *names, system_prompt="", GenerationConfig=Stub)

    def advantages(rewards):
        return torch.stack([train.group_advantages(group) for group in rewards])

    def loss(logp, old_logp, advantages, mask, clip):
        needs(clip[0] == clip[1], "one epsilon")
        given = Stub(action_log_probs=old_logp, log_probs_ref=old_logp, action_mask=mask)
        given["advantages"] = advantages[:, None]
        return losses.GRPOLoss(clip[0], 0.0)(logp, given)[0]

    def completion_mask(ids, prompt_lengths, stop_id, pad_id):
        start = one_width(prompt_lengths)
        needs(pad_id == stop_id, "rollout pads with the stop token")
        prompt = dict.fromkeys(("input_ids", "attention_mask"), ids[:1, :start])
        tokenizer = Stub(prompt, eos_token_id=stop_id)
        tokenizer["batch_decode"] = lambda *_, **__: [""] * len(ids)
        model = Stub(generate=lambda **_: ids)
        return train.rollout(model, tokenizer, 0, 0, len(ids))[2].float()

    def logprobs(logits, ids, temperature):
        needs(temperature == 1, "sampled at 1")
        model = Stub(forward=Stub(logits=logits))
        return train.sequences_log_probs(model, ids, torch.ones_like(ids))

    def padded_logprobs(model, ids, attention_mask):
        return train.sequences_log_probs(model, ids, attention_mask)

    def kl(logp, ref_logp):
        return losses.approx_kl_divergence(logp, ref_logp, None)

    return offers(advantages, loss, completion_mask, logprobs, padded_logprobs, kl, gradient_of(kl))


def verl_core():
    """verl 0.9.1: its own functions, run on small tensors, with torch 2.13.0.

        pip install verl==0.9.1

    The functions come from verl.trainer.ppo.core_algos and rollout_corr_helper, and from verl.utils.torch_functional,
    model and reward_score. They have their defaults.
    """
    from verl.trainer.ppo import core_algos, rollout_corr_helper
    from verl.utils import torch_functional
    from verl.utils.model import compute_position_id_with_mask
    from verl.utils.reward_score import math_reward

    def advantages(rewards):
        P, G = rewards.shape
        ones = torch.ones(P * G, 1)
        index = torch.arange(P).repeat_interleave(G).numpy()
        scores = rewards.reshape(-1, 1).clone()
        return core_algos.compute_grpo_outcome_advantage(scores, ones, index)[0].view(P, G)

    def loss(logp, old_logp, advantages, mask, clip, batch_mask, name="vanilla"):
        config = Stub(clip_ratio=0.2, clip_ratio_low=clip[0], clip_ratio_high=clip[1])
        info = {"dp_size": 1, "batch_num_tokens": batch_mask.sum(), "global_batch_size": len(mask)}
        config["global_batch_info"] = info
        wide = advantages[:, None].expand_as(mask)
        return core_algos.get_policy_loss_fn(name)(old_logp, logp, wide, mask, config=config)[0]

    def trust_region(logp, sampled_logp, advantages, mask, delta):
        return loss(logp, sampled_logp, advantages, mask, (delta, delta), mask, "dppo_tv")

    def correction(old_logp, sampled_logp, mask, level, how, low, high):
        """The threshold is a number for truncating, and the text low_high for IcePop, which masks."""
        bounds = f"{low}_{high}" if how == "mask" else high
        what = old_logp - sampled_logp, mask, level, bounds
        return rollout_corr_helper.compute_rollout_correction_weights(*what)[0]

    @row_by_row
    def completion_mask(prompt, completion, stop_id, pad_id):
        return torch_functional.get_response_mask(completion[None], stop_id)[0]

    def logprobs(logits, ids, temperature):
        """verl's actors divide the logits by the temperature before this call."""
        why = "on a GPU, with bf16, another kernel is called: not run"
        needs(logits.dtype == torch.float32, why)
        return torch_functional.logprobs_from_logits(logits[:, :-1] / temperature, ids[:, 1:])

    def padded_logprobs(model, ids, attention_mask):
        places = compute_position_id_with_mask(attention_mask)
        return logprobs(model(ids, attention_mask, places).logits, ids, 1.0)

    def kl(logp, ref_logp):
        """low_var_kl is the default of kl_loss_type."""
        return core_algos.kl_penalty(logp, ref_logp, "low_var_kl")

    def reward(text, truth, finished):
        needs(finished, "compute_score sees the text only")
        return math_reward.compute_score(text, truth)

    def extract(text):
        box = math_reward.last_boxed_only_string(text)
        return None if box is None else math_reward.remove_boxed(box)

    def grade(answer, truth):
        return math_reward.is_equiv(answer, truth)

    of_texts = reward, extract, grade
    of_tokens = completion_mask, logprobs, padded_logprobs, kl, gradient_of(kl)
    return offers(advantages, loss, trust_region, correction, *of_tokens, *of_texts)
