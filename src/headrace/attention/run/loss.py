"""Loss of a model on text, with attention by a plan."""

from torch import Tensor, nn
from torch.nn import functional

from headrace.attention.measure.likeness import SampleProgress
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.compress import evaluated


def sample_losses(
    model: nn.Module, plan: AttentionPlan | None, samples: Tensor, progress: SampleProgress
) -> list[float]:
    """Return the mean loss of a token, of every sample; None as plan: of the model as it is.

    Every query reads keys and values as the cache stores them, its own token's, too: as in
    decoding, and unlike a prompt's first pass.
    """
    device = next(model.parameters()).device
    losses: list[float] = []
    with evaluated(model, plan):
        for index, sample in enumerate(samples):
            progress(f"sample {index + 1} of {len(samples)}", index / len(samples))
            tokens = sample[None].to(device)
            cache = None if plan is None else CompressedCache(plan, through_store=True)
            logits = model(input_ids=tokens, cache=cache).logits
            loss = functional.cross_entropy(logits[0, :-1].float(), tokens[0, 1:])
            losses.append(float(loss))
    return losses
