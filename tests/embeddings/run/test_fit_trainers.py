"""Two trainers' steps are those of one process, where shares are empty and a scaler skips some."""

import sys
from pathlib import Path

import pytest
import torch

from headrace.embeddings.run.job_processes import JobHosts
from headrace.embeddings.run.supervisor import run_embedding_job
from tests.embeddings.run import bags_job
from tests.embeddings.run.models import torch_batches
from tests.embeddings.run.test_job import job_options

SCRIPT = Path(bags_job.__file__)


@pytest.mark.slow
def test_two_trainers_skip_the_same_steps_and_refuse_alike(tmp_path: Path) -> None:
    data = tmp_path / "bags.parquet"
    bags_job.write(data)
    lines: list[tuple[str, str]] = []
    run_embedding_job(
        [sys.executable, str(SCRIPT), str(data), str(tmp_path / "learned ")],
        job_options(cache_bytes=1 << 20),
        JobHosts.on_this_machine(trainers=2, servers=1, readers=1),
        on_line=lambda name, line: lines.append((name, line)),
        environment={"PYTHONPATH": str(Path.cwd())},
    )
    model = bags_job.model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    batches = bags_job.examples().batches
    for epoch in range(bags_job.EPOCHS):
        plain = torch_batches(batches)
        bags_job.train(model, optimizer, scaler, plain, epoch=epoch, overflows=True)
    expected = {name: weight.detach() for name, weight in model.named_parameters()}
    scores: list[torch.Tensor] = []
    for rank in range(2):
        learned = torch.load(tmp_path / f"learned {rank}")
        scores.append(learned.pop("scores"))
        assert learned.keys() == expected.keys()
        for name, values in expected.items():
            torch.testing.assert_close(learned[name], values, rtol=1e-9, atol=1e-9)
        assert (f"trainer {rank}", f"scale {scaler.get_scale():g}") in lines
        texts = {text for name, text in lines if name == f"trainer {rank}"}
        reason = "the import failed at trainer 0" if rank else f"{tmp_path / 'learned nothing'} has"
        assert any(text.startswith(f"not loaded: {reason}") for text in texts), texts
        refusal = "gradients were changed between backward() and step()"
        assert any(text.startswith(refusal) for text in texts)
    whole = torch.cat([model(*batch[:2]) for batch in torch_batches(batches)]).detach()
    assert sum(map(len, scores)) == len(whole)
    torch.testing.assert_close(torch.cat(scores).sort()[0], whole.sort()[0], rtol=1e-9, atol=1e-9)
