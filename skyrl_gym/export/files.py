"""A run's trajectories as a file that another trainer or data tool reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from skyrl_gym.errors import ConfigError, MissingDependency
from skyrl_gym.evaluate.runs import Run, write_whole
from skyrl_gym.export.chat import sft_rows, sharegpt_rows
from skyrl_gym.export.selection import Selection
from skyrl_gym.export.skyrl_train import skyrl_train_output
from skyrl_gym.export.table import hf_rows, hf_schema
from skyrl_gym.export.tinker import tinker_rows
from skyrl_gym.export.trl import trl_rows
from skyrl_gym.export.verifiers import verifiers_rows
from skyrl_gym.export.verl import verl_batch
from skyrl_gym.registration import make_env
from skyrl_gym.tools import ToolSpec

__all__ = ["FORMATS", "Exported", "Format", "export_run", "tools_of_run"]

ROWS_AT_ONCE = 256  # of a Parquet file's row groups


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and what became of the trajectories that were not.

    `excluded` counts the trajectories without a reward that counts by their ending, `below` those rewarded less
    than was asked for, `without_tokens` those whose exact ids are not known (left out of token formats),
    `without_logprobs` the sequences whose log-probabilities are missing.
    """

    path: Path
    trajectories: int
    excluded: Mapping[str, int]
    below: int
    without_tokens: int
    without_logprobs: int


def export_run(
    run: Run, to: str, out: Path | None = None, *, min_reward: float | None = None, pad_id: int = 0
) -> Exported:
    """Writes the judged trajectories of a run folder.

    Args:
        run: an evaluation or a training; its journal is read once.
        to: a key of `FORMATS`.
        out: the file; by default in the run folder, in `export/`.
        min_reward: leave out what was rewarded less.
        pad_id: what VeRL's tensors are padded with.

    Raises:
        ConfigError: an unknown format, or nothing to export.
        MissingDependency: Parquet needs pyarrow.
    """
    if to not in FORMATS:
        raise ConfigError(f"unknown format {to!r}; known: {', '.join(FORMATS)}")
    form = FORMATS[to]
    path = out or run.path / "export" / form.file
    selection = Selection(run.trajectories(), min_reward=min_reward)
    form.write(path, selection, run, pad_id)
    if not selection.written:
        path.unlink(missing_ok=True)
        raise ConfigError(f"{run.path} has nothing to export as {to}: {_why_nothing(selection)}")
    return Exported(
        path,
        selection.written,
        dict(selection.excluded),
        selection.below,
        selection.without_tokens,
        selection.without_logprobs,
    )


def tools_of_run(run: Run) -> tuple[ToolSpec, ...]:
    """The tools that the policy was shown; none where the environment is not registered here."""
    section = run.config.get("env")
    section = section if isinstance(section, Mapping) else {}
    env_id = run.config.get("env_id") or section.get("id")
    kwargs = run.config.get("env_kwargs") or section.get("kwargs") or {}
    if not isinstance(env_id, str):
        return ()
    try:
        env = make_env(env_id, **kwargs)
    except ConfigError:
        return ()
    try:
        return env.tool_specs
    finally:
        env.close()


@dataclass(frozen=True, slots=True)
class Format:
    """A target: the name of its file, one line on it, and how it is written."""

    file: str
    summary: str
    write: Callable[[Path, Selection, Run, int], None]


def _lines(rows: Callable[[Selection], Iterable[Mapping[str, Any]]]) -> Callable[[Path, Selection, Run, int], None]:
    def write(path: Path, selection: Selection, run: Run, pad_id: int) -> None:
        write_whole(path, map(_line, rows(selection)))

    return write


def _line(row: Any) -> bytes:
    # Lone surrogates, which a model can sample, have no UTF-8: they stay escaped.
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _write_sft(path: Path, selection: Selection, run: Run, pad_id: int) -> None:
    write_whole(path, map(_line, sft_rows(selection, tools_of_run(run))))


def _write_sharegpt(path: Path, selection: Selection, run: Run, pad_id: int) -> None:
    write_whole(path, map(_line, sharegpt_rows(selection, tools_of_run(run))))


def _write_skyrl_train(path: Path, selection: Selection, run: Run, pad_id: int) -> None:
    write_whole(path, [_line(skyrl_train_output(selection))])


def _write_verl(path: Path, selection: Selection, run: Run, pad_id: int) -> None:
    import numpy as np

    tensors, others = verl_batch(selection, pad_id=pad_id)
    plain = {
        f"non_tensor/{name}": values if values.dtype != object else _plain(values) for name, values in others.items()
    }
    arrays: dict[str, Any] = {**tensors, **plain}
    with _whole(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _plain(values: Any) -> Any:
    """A column of objects as one of numbers or text, so that it loads without pickle."""
    import numpy as np

    return np.array(values.tolist())


def _write_hf(path: Path, selection: Selection, run: Run, pad_id: int) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency.extra("pyarrow", "export") from None
    schema = hf_schema()
    with _whole(path) as part, pq.ParquetWriter(part, schema) as writer:
        rows = map(_clean, hf_rows(selection))
        while some := list(islice(rows, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema=schema))


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file to write, which becomes `path` when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _clean(value: Any) -> Any:
    """Arrow's text is UTF-8: a lone surrogate becomes the replacement character."""
    match value:
        case str():
            return value.encode(errors="surrogatepass").decode(errors="replace")
        case dict():
            return {key: _clean(entry) for key, entry in value.items()}
        case list() if value and not isinstance(value[0], int | float):
            return [_clean(entry) for entry in value]
    return value


def _why_nothing(selection: Selection) -> str:
    reasons = [
        *(f"{count} excluded ({ending})" for ending, count in selection.excluded.items()),
        *([f"{selection.below} rewarded less than asked for"] if selection.below else []),
        *([f"{selection.without_tokens} without token ids"] if selection.without_tokens else []),
    ]
    return ", ".join(reasons) or "it has no trajectories"


FORMATS: Mapping[str, Format] = {
    "trl": Format("trl.jsonl", "TRL: what a rollout_func of GRPOTrainer returns", _lines(trl_rows)),
    "verl": Format("verl.npz", "VeRL: the tensors of a DataProto", _write_verl),
    "skyrl-train": Format("skyrl-train.json", "SkyRL-train: a GeneratorOutput", _write_skyrl_train),
    "tinker": Format("tinker.jsonl", "Tinker: the parts of a Datum, with advantages", _lines(tinker_rows)),
    "hf": Format("trajectories.parquet", "Parquet for datasets, pandas, DuckDB", _write_hf),
    "sft": Format("sft.jsonl", "OpenAI messages and tools for fine-tuning", _write_sft),
    "sharegpt": Format("sharegpt.jsonl", "ShareGPT conversations", _write_sharegpt),
    "verifiers": Format("traces.jsonl", "verifiers: its saved episodes", _lines(verifiers_rows)),
}
"""The targets by name."""
