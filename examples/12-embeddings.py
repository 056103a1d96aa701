"""A recommendation model whose embedding rows are at hand before a step needs them: 3 lines more.

    headrace embeddings generate -o clicks.tsv --examples 30K --most-rows 2000
    headrace embeddings generate -o later.tsv --examples 5K --most-rows 2000 --seed 1
    python examples/12-embeddings.py clicks.tsv later.tsv

Here one process trains, and starts those that read, decide and serve rows. With more trainers
`headrace embeddings run` starts all, by a plan (docs/embeddings.md):

    headrace embeddings measure clicks.tsv -o clicks.profile --trainers 2 --batch 512 --lookahead 8
    headrace embeddings plan clicks.profile -o job.plan --cache-memory 4MiB
    headrace embeddings run job.plan --state state -- examples/12-embeddings.py clicks.tsv later.tsv
"""

import sys

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from headrace.embeddings import CriteoData, CriteoFormat, fit

COLUMNS = 26
ROWS = 5000
EPOCHS = 2


class Model(nn.Module):
    """Dense features, and the rows of 26 ids (DLRM)."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.tables = nn.ModuleList(  # without values: they are created where they are served
            nn.Embedding(ROWS, dim, device="meta") for _ in range(COLUMNS)
        )
        products = COLUMNS * (COLUMNS + 1) // 2
        self.top = nn.Sequential(nn.Linear(dim + products, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = [table(ids[:, column]) for column, table in enumerate(self.tables)]
        features = torch.stack([bottom, *rows], dim=1)
        products = features @ features.transpose(1, 2)
        first, second = torch.triu_indices(COLUMNS + 1, COLUMNS + 1, offset=1)
        return self.top(torch.cat([bottom, products[:, first, second]], dim=1)).squeeze(1)


def data(path: str) -> CriteoData:
    """Return a file of clicks, in batches of all trainers together."""
    return CriteoData.of([path], batch=512, layout=CriteoFormat(rows=(ROWS,) * COLUMNS))


def main(clicks: str, later: str) -> None:
    """Train; after each epoch print how well this trainer's share of later clicks is ranked."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.005)
    criterion = nn.BCEWithLogitsLoss()

    model, batches = fit(model, data(clicks), optimizer=optimizer, cache="4MiB")
    with batches:
        for epoch in range(batches.epoch, EPOCHS):
            for dense, ids, labels in batches:
                loss = criterion(model(dense, ids), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            scores: list[Tensor] = []
            clicked: list[Tensor] = []
            for dense, ids, labels in batches.evaluate(data(later)):
                with torch.no_grad():
                    scores.append(model(dense, ids))
                clicked.append(labels)
            auc = roc_auc_score(torch.cat(clicked), torch.cat(scores))
            print(f"epoch {epoch + 1}: AUC of later clicks {auc:.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
