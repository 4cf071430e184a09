"""Variants on disk: the default configuration with a change applied, as config.pbtxt next to links to
the weights.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import Configuration, Variant
from tpx.errors import MeasurementError, UsageError
from tpx.protocol import model_config
from tpx.serving.backends.vllm.arguments import move_arguments

CONFIG_FILE = "config.pbtxt"
COPIED_BYTES = 1 << 20
VARIANT_DIRECTORY = re.compile(r".+_config_(default|\d+)")

WHOLE_BYTES = 16 << 20
"""Larger files are fingerprinted by their size and their first and last mebibyte."""
END_BYTES = 1 << 20

OWN_FILES = "config.pbtxt.backup-"
"""Prefix of the backups that `tpx analyze apply` makes, which fingerprints ignore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model that a search strategy needs."""

    model: str
    max_batch_size: int
    """max_batch_size of the default configuration; 0 if the model does not batch."""
    instance_kind: str = "KIND_CPU"
    can_batch_dynamically: bool = True
    """False for sequence models and ensembles, which use other schedulers."""
    preferred_batch_sizes: tuple[int, ...] = ()
    """Preferred sizes of the default's dynamic batcher; a variant has those up to its max_batch_size."""
    instances: int = 1
    """Instance count of the default configuration."""
    backend: str = ""
    """Backend in the completed configuration, such as `onnxruntime`."""
    steps: tuple[str, ...] = ()
    """Models that an ensemble is composed of, without duplicates."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the default configuration."""
    by_tpx: bool = False
    """True for a language model that a server of tpx serves."""


def merge(base: Any, delta: Any) -> Any:
    """Return `base` with the change: mappings merge by key, lists of equal length by item; None removes."""
    if isinstance(base, Mapping) and isinstance(delta, Mapping):
        kept = {key: value for key, value in base.items() if key not in delta}
        return kept | {
            key: merge(base.get(key, {} if isinstance(value, Mapping) else None), value)
            for key, value in delta.items()
            if value is not None
        }
    lists = isinstance(base, list) and isinstance(delta, list) and 0 < len(base) == len(delta)
    if lists and all(isinstance(item, Mapping) for item in (*base, *delta)):
        return [merge(old, new) for old, new in zip(base, delta, strict=True)]
    return delta


def configure(
    variant: Variant,
    default: Mapping[str, object],
    defaults: Mapping[str, Mapping[str, object]] | None = None,
) -> Configuration:
    """Return the configuration of a variant, from the JSON of its default and of its members' `defaults`.

    A business-logic model runs instances next to its members', an ensemble only theirs. Raises
    ConfigError if the change does not fit the model configuration's schema.
    """
    members = tuple(configure(m, (defaults or {})[m.model], defaults) for m in variant.members)
    own = _configure(variant, default)
    if not members:
        return own
    if variant.is_group or default.get("ensemble_scheduling"):
        computing, batch_size = members, min(m.max_batch_size for m in members)
    else:
        computing, batch_size = (own, *members), own.max_batch_size
    return replace(
        own,
        members=members,
        instance_group="; ".join(each.instance_group for each in computing),
        instances=sum(each.instances for each in computing),
        max_batch_size=batch_size,
        dynamic_batching=any(each.dynamic_batching for each in computing),
    )


def _configure(variant: Variant, default: Mapping[str, Any]) -> Configuration:
    merged = {key: value for key, value in merge(default, variant.delta).items() if key != "name"}
    message = model_config.from_json(json.dumps(merged), f"configuration {variant.name}")
    counts: dict[str, int] = {}
    for group in model_config.to_json(message).get("instance_group", ()):
        kind = str(group["kind"]).removeprefix("KIND_")
        counts[kind] = counts.get(kind, 0) + group["count"] * max(1, len(group.get("gpus", ())))
    counts = counts or {"CPU": 1}
    return Configuration(
        variant=variant,
        text=model_config.to_text(message),
        instance_group=" + ".join(f"{count}:{kind}" for kind, count in counts.items()),
        instances=sum(counts.values()),
        max_batch_size=message.max_batch_size,
        dynamic_batching=message.HasField("dynamic_batching"),
        decoupled=message.model_transaction_policy.decoupled,
    )


def effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a served configuration as a base for variants.

    Servers complete a batcher without preferred sizes with the maximum, which must not tie variants.
    """
    out = dict(config)
    batcher = dict(out.get("dynamic_batching") or {})
    if batcher.get("preferred_batch_size") == [out.get("max_batch_size")]:
        out["dynamic_batching"] = {
            key: value for key, value in batcher.items() if key != "preferred_batch_size"
        }
    return out


def facts_of(model: str, default: Mapping[str, Any], *, gpu: bool) -> ModelFacts:
    """Return the facts that a search needs, from the JSON of a model's effective default configuration."""
    groups = default.get("instance_group") or [{}]
    kind = str(groups[0].get("kind", "KIND_AUTO"))
    if kind == "KIND_AUTO":
        kind = "KIND_GPU" if gpu else "KIND_CPU"
    batcher = default.get("dynamic_batching") or {}
    platform = str(default.get("platform", ""))
    steps = (default.get("ensemble_scheduling") or {}).get("step", ())
    parameters = default.get("parameters") or {}
    return ModelFacts(
        model=model,
        max_batch_size=int(default.get("max_batch_size", 0)),
        instance_kind=kind,
        can_batch_dynamically=not (default.get("sequence_batching") or default.get("ensemble_scheduling")),
        preferred_batch_sizes=tuple(int(size) for size in batcher.get("preferred_batch_size", ())),
        instances=instance_count(groups),
        backend=str(default.get("backend", "")) or platform.partition("_")[0],
        steps=tuple(dict.fromkeys(str(step["model_name"]) for step in steps if "model_name" in step)),
        parameters={name: str(value.get("string_value", "")) for name, value in parameters.items()},
        by_tpx=any(tensor.get("name") == "openai_request" for tensor in default.get("input", ())),
    )


def changed_parameters(variant: Variant) -> dict[str, str]:
    """Return the parameters that a variant changes, with their values."""
    changed = variant.delta.get("parameters") or {}
    return {name: str((value or {}).get("string_value", "")) for name, value in changed.items()}


def instance_count(groups: Iterable[Mapping[str, Any]]) -> int:
    """Return the total number of instances in these JSON groups: `count` on each of their GPUs."""
    return sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", ()))) for group in groups)


def automatic_delta(facts: ModelFacts, instances: int, batch_size: int | None) -> dict[str, object]:
    """Return Model Analyzer's automatic variant of these instances and batches of up to `batch_size`.

    None leaves batching unchanged. The default's batcher stays, but for preferred sizes that do not fit.
    """
    delta: dict[str, object] = {"instance_group": [{"count": instances, "kind": facts.instance_kind}]}
    if batch_size is None:
        return delta
    delta["max_batch_size"] = batch_size
    if facts.can_batch_dynamically:
        preferred = facts.preferred_batch_sizes
        fitting = [size for size in preferred if size <= batch_size]
        delta["dynamic_batching"] = (
            {} if len(fitting) == len(preferred) else {"preferred_batch_size": fitting}
        )
    return delta


def fingerprint(directory: Path, instead: Mapping[str, str | None] | None = None) -> str:
    """Return the SHA-256 of all files below, or of `instead` (None hides one); empty without a directory."""
    if not directory.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if not path.is_file() or path.name.startswith(OWN_FILES):
            continue
        name = str(path.relative_to(directory))
        if instead is not None and name in instead:
            text = instead[name]
            if text is not None:
                digest.update(f"{name}\0{len(text.encode())}\0".encode() + text.encode())
            continue
        size = path.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= WHOLE_BYTES:
                while block := file.read(END_BYTES):
                    digest.update(block)
            else:
                digest.update(file.read(END_BYTES))
                file.seek(-END_BYTES, 2)
                digest.update(file.read(END_BYTES))
    return digest.hexdigest()


class OutputRepository:
    """A repository that holds each variant as a model: its config.pbtxt and links to the model's files.

    Hard links, so that a server finds all files in the variant's directory; where they are impossible,
    small files are copied and large ones linked symbolically.
    """

    def __init__(
        self, path: Path, source: Path | None, *, override: bool = False, keep: bool = False
    ) -> None:
        """`source` has the weights, None if they are elsewhere; `keep` preserves files of a run to resume.

        Raises UsageError if the directory exists and must not be replaced, or overlaps the source.
        """
        self.path = path.absolute()
        self._source = None if source is None else source.absolute()
        self._written: set[str] = set()
        if self._source is not None:
            target, origin = (Path(os.path.realpath(p)) for p in (self.path, self._source))
            if target == origin or target in origin.parents or origin in target.parents:
                raise UsageError(
                    f"--output-model-repository-path {self.path} overlaps --model-repository {self._source}: "
                    "variants must be written outside the source models, as below another --export-path"
                )
        try:
            if not keep:
                self._empty_directory(override=override)
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise UsageError(f"cannot create the output model repository {path}: {exc.strerror}") from exc

    def write(self, configuration: Configuration) -> Path:
        """Write this variant and its members, once per run, and return the variant's directory."""
        variant = configuration.variant
        for member in configuration.members:
            if member.variant.name != variant.name:
                self.write(member)
        directory = self.path / variant.name
        if variant.name in self._written or variant.is_group:
            return directory  # a group of models has no directory
        try:
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)
            for entry in sorted((self._source / variant.model).iterdir()) if self._source else ():
                if entry.name != CONFIG_FILE:
                    _link_tree(entry, directory / entry.name)
            config = move_arguments(model_config.parse(configuration.text, variant.name), directory)
            (directory / CONFIG_FILE).write_text(model_config.to_text(config), encoding="utf-8")
        except OSError as exc:
            raise MeasurementError(f"cannot write {directory}: {exc.strerror}") from exc
        self._written.add(variant.name)
        return directory

    def _empty_directory(self, *, override: bool) -> None:
        """Empty the directory; only directories written by an earlier run are ever removed."""
        entries = sorted(self.path.iterdir()) if self.path.exists() else []
        if entries and not override:
            raise UsageError(
                f"the output model repository {self.path} is not empty: name another with "
                "--output-model-repository-path, or replace it with --override-output-model-repository"
            )
        for entry in entries:
            if (
                entry.is_symlink()
                or not (entry / CONFIG_FILE).is_file()
                or not VARIANT_DIRECTORY.fullmatch(entry.name)
            ):
                raise UsageError(
                    f"--override-output-model-repository would remove {entry}, which is not a variant that a "
                    "run wrote: name another --output-model-repository-path"
                )
        for entry in entries:
            shutil.rmtree(entry)


def _link_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir()
        for entry in sorted(source.iterdir()):
            _link_tree(entry, target / entry.name)
        return
    try:
        os.link(source, target)
    except OSError:
        if source.stat().st_size <= COPIED_BYTES:
            shutil.copyfile(source, target)
        else:
            target.symlink_to(source)
