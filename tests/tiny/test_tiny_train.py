"""Training's small parts: batches, masks, the loss and the schedule, on the CPU."""

import pytest
import torch
from tokenizers import Tokenizer

from helios.tiny.corpus import PADDING, PROMPT, TARGET, make_shard
from helios.tiny.training.feed import Batch, to_batch
from helios.tiny.training.folder import TinyShape
from helios.tiny.training.masks import dense_mask
from helios.tiny.training.network import TinyQwen3
from helios.tiny.training.prepare import MODEL_FOLDER
from helios.tiny.training.train import Recipe, Schedule, batch_loss, learning_rate

CPU = torch.device("cpu")
SMALL = TinyShape(
    hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16
)


@pytest.fixture(scope="module")
def batch() -> Batch:
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    return to_batch(make_shard(tokenizer, 0, 0, rows=1, longest=200), 0, 1, CPU)


def test_positions_start_again_and_no_label_crosses_into_another_document(batch: Batch) -> None:
    documents, kinds = batch.documents[0], batch.kinds[0]
    starts = torch.cat([torch.tensor([True]), documents[1:] != documents[:-1]])
    assert (batch.positions[0][starts] == 0).all()
    assert (batch.positions[0][1:][~starts[1:]] == batch.positions[0][:-1][~starts[1:]] + 1).all()
    assert (kinds[:-1][starts[1:]] == PADDING).all()
    assert kinds[-1] == PADDING
    assert (batch.labels[0][:-1] == batch.ids[0][1:]).all()
    assert {PADDING, PROMPT, TARGET} == set(kinds.tolist())


def test_a_document_in_a_packed_row_has_the_hidden_states_it_has_alone(batch: Batch) -> None:
    model = TinyQwen3(SMALL)
    model.initialise(0)
    torch.nn.init.normal_(model.model.layers[0].self_attn.o_proj.weight, std=0.2)
    second = (batch.documents[0] == 2).nonzero()[:, 0]
    alone = batch.ids[:, second]
    with torch.no_grad():
        packed = model(batch.ids, batch.positions, dense_mask(batch.documents), torch.float32)
        apart = model(alone, torch.arange(alone.shape[1])[None], None, torch.float32)
    torch.testing.assert_close(packed[:, second], apart, atol=1e-5, rtol=1e-4)


def test_without_prompt_weight_the_loss_is_that_of_the_answers(batch: Batch) -> None:
    model = TinyQwen3(SMALL)
    model.initialise(0)
    mask = dense_mask(batch.documents)
    tensors = (batch.ids, batch.positions, mask, batch.labels, batch.kinds)
    with torch.no_grad():
        loss, answers = batch_loss(model, *tensors, torch.tensor(0.0), torch.float32)
        both, same_answers = batch_loss(model, *tensors, torch.tensor(1.0), torch.float32)
    assert loss == pytest.approx(float(answers))
    assert answers == pytest.approx(float(same_answers))
    assert both != pytest.approx(float(answers))


def test_the_learning_rate_rises_stays_and_ends_at_zero() -> None:
    recipe = Recipe(8.0, 1.0, 0.5, None, None, rows=1, seed=0)
    assert 0 < learning_rate(0.0, recipe) < 0.1
    assert learning_rate(recipe.warmup, recipe) == learning_rate(recipe.decay_from, recipe) == 1.0
    assert learning_rate(1.0, recipe) == learning_rate(1.5, recipe) == 0.0


def test_a_schedule_of_steps_ignores_the_clock() -> None:
    assert Schedule(steps=4, start=0.0, end=0.0).progress(1) == 0.25
