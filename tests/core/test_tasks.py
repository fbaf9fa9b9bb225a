"""Tasks and task sets."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.errors import TaskError
from skyrl_gym.tasks import Task, TaskSet

ROWS = [{"n": i} for i in range(10)]


def test_ids_come_from_the_row_or_from_its_content_alone() -> None:
    assert Task.from_row({"instance_id": "a__b-1"}).id == "a__b-1"
    first, second = Task.from_row({"a": 1, "b": [2]}), Task.from_row({"b": [2], "a": 1})
    assert first.id == second.id == first.hash
    assert Task.from_row({"a": 2}).hash != first.hash


def test_slices_shuffles_and_filters_are_lazy_views() -> None:
    made: list[int] = []

    def make(i: int) -> dict[str, int]:
        made.append(i)
        return {"n": i}

    tasks = TaskSet.from_generator(make, 1_000_000)
    view = tasks.shuffle(3)[10:20].take(5)
    assert made == []
    assert len(view) == 5
    assert view[0].data["n"] == made[0]
    assert [t.data["n"] for t in tasks[:20].filter(lambda t: t.data["n"] % 2 == 1)] == list(range(1, 20, 2))
    assert [t.id for t in tasks[:50].shuffle(1)] == [t.id for t in tasks[:50].shuffle(1)]


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3), max_size=8))
def test_jsonl_round_trips_whatever_stands_in_a_string(rows: list[dict[str, object]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), newline="")
        assert [dict(task.data) for task in TaskSet.load(path)] == rows


def test_a_broken_row_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n[2]\n{"a"\n')
    tasks = TaskSet.from_jsonl(path)
    assert tasks[0].data == {"a": 1}
    with pytest.raises(TaskError, match="task 2 is not an object"):
        tasks[1]
    with pytest.raises(TaskError, match="task 3 is not JSON"):
        tasks[2]


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such file"):
        TaskSet.load(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="has no task 'x'; it has 10"):
        TaskSet.from_rows(ROWS).find("x")
    with pytest.raises(TaskError, match="field 'm' is missing; it has n"):
        TaskSet.from_rows(ROWS)[0].require("m")
    with pytest.raises(TaskError, match="JSON values only"):
        Task("x", {"a": object()}).hash  # noqa: B018


def test_directories_are_read_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
    assert [t.id for t in TaskSet.from_directory(tmp_path, lambda p: {"id": p.name})] == ["a", "b"]


def test_parquet(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "rows.parquet"))
    assert [dict(t.data) for t in TaskSet.load(tmp_path / "rows.parquet")] == ROWS
