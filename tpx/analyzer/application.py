"""Apply a winning configuration to a model repository, and roll it back.

The file is replaced atomically and its previous version kept next to it as config.pbtxt.backup-N. The
first line of the new file names the backup and the hash of the rest, so that `rollback` knows what to
restore and can detect later edits. Only the fields that get another value are edited; all other text
stays.
"""

import difflib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import Configuration
from tpx.analyzer.variants import CONFIG_FILE, fingerprint, merge
from tpx.errors import ConfigError, MeasurementError, UsageError
from tpx.options import nearest
from tpx.protocol import model_config
from tpx.protocol.config_text import FieldText, outer_fields

_MARK = "# Applied by tpx analyze"
_HEADER = re.compile(rf"{_MARK}: (\S+); before: (\S+); sha256 of what follows: ([0-9a-f]{{64}})\r?\n")
_BYTE_ORDER_MARK = "\ufeff"
NO_FILE = "none"

_NEXT_ELEMENT = re.compile(r"\n(?=[a-z])")
"""Boundary between the elements of a repeated field, as protobuf prints it."""
_LINE_END = re.compile(r"[ \t]*(\r?\n|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One model's config.pbtxt before and after; None means no file."""

    model: str
    path: Path
    before: str | None
    after: str | None
    backup: Path | None = None
    """Backup that a rollback restores and then removes."""

    @property
    def diff(self) -> str:
        """Unified diff; empty if nothing changes."""
        if self.before == self.after:
            return ""
        texts = (self.before, self.after)
        old, new = ((text or "").splitlines(keepends=True) for text in texts)
        for lines in (old, new):
            if lines and not lines[-1].endswith("\n"):
                lines[-1] += "\n\\ No newline at end of file\n"
        was, becomes = (os.devnull if text is None else str(self.path) for text in texts)
        return "".join(difflib.unified_diff(old, new, was, becomes))


def changes_to(
    configuration: Configuration, repository: Path, measured: Mapping[str, str]
) -> tuple[ConfigChange, ...]:
    """Return the changes that apply a measured configuration, one file per model.

    `measured` holds the models' fingerprints at the time of measurement; a model without one is not
    checked. Configurations applied since then do not count as a change: the variant is based on the
    model as measured. Raises UsageError if a model is missing or differs from the measured one.
    """
    name = configuration.variant.name
    found = []
    for each in configuration.files:
        model = each.variant.model
        directory = _find_model(repository, model)
        base = _find_base(directory, measured.get(model, ""))
        found.append(_plan_change(each, directory / CONFIG_FILE, name, base))
    return tuple(change for change in found if change.diff)


def changes_back(models: Sequence[str], repository: Path, *, force: bool = False) -> tuple[ConfigChange, ...]:
    """Return the changes that roll models back. Raises UsageError if a file was edited, or never applied."""
    changes = []
    for model in models:
        path = _find_model(repository, model) / CONFIG_FILE
        now = _read_text(path)
        found = _HEADER.match(now or "")
        if now is None or found is None:
            raise UsageError(f"{path} was not written by tpx analyze apply: nothing to roll back")
        if not force and _match_intact_header(now) is None:
            raise UsageError(f"{path} was changed after it was applied: see the difference, then add --force")
        backup, before = None, None
        if found.group(2) != NO_FILE:
            backup = path.with_name(found.group(2))
            before = _read_text(backup)
            if before is None:
                raise UsageError(f"the backup {backup} is gone: nothing to roll back to")
        changes.append(ConfigChange(model=model, path=path, before=now, after=before, backup=backup))
    return tuple(changes)


def applied(repository: Path) -> dict[str, str]:
    """Return the models with an applied file, each with the name of its configuration."""
    found = {
        path.parent.name: _HEADER.match(_read_text(path) or "")
        for path in repository.glob(f"*/{CONFIG_FILE}")
    }
    return {model: match.group(1) for model, match in sorted(found.items()) if match is not None}


def carry_out(changes: Sequence[ConfigChange]) -> None:
    """Write all changes or none. Raises MeasurementError if a file cannot be written."""
    done: list[ConfigChange] = []
    try:
        for change in changes:
            restoring = change.backup is not None or change.after is None
            if not restoring and change.before is not None:
                # the backup first: a crash in between loses nothing
                _replace_file(_choose_backup_path(change.path), change.before)
            _replace_file(change.path, change.after)
            if change.backup is not None:
                change.backup.unlink(missing_ok=True)
            done.append(change)
    except OSError as exc:
        for change in reversed(done):
            _replace_file(change.path, change.before)
            found = _HEADER.match(change.after or "")
            if change.backup is not None:
                _replace_file(change.backup, change.after)
            elif found is not None and found.group(2) != NO_FILE:
                change.path.with_name(found.group(2)).unlink(missing_ok=True)
        raise MeasurementError(f"cannot write {exc.filename}: {exc.strerror}; nothing was changed") from exc


def _find_model(repository: Path, model: str) -> Path:
    """Return the directory of a model. Raises UsageError if there is none."""
    if not (repository / model).is_dir():
        models = [entry.name for entry in repository.iterdir() if entry.is_dir()]
        raise UsageError(f"{repository} has no model '{model}'{nearest(model, models)}")
    return repository / model


def _find_base(directory: Path, measured: str) -> str | None:
    """Return the text that the variant is based on: the current file, or one before earlier applications."""
    path = directory / CONFIG_FILE
    if not measured or fingerprint(directory) == measured:
        return _read_text(path)
    for origin in _iter_replaced(path):
        if fingerprint(directory, {CONFIG_FILE: origin}) == measured:
            return origin
    raise UsageError(
        f"{directory} has changed since it was measured: measure it again, or apply with --force"
    )


def _iter_replaced(path: Path) -> Iterator[str | None]:
    """Yield the text that each application replaced, latest first, up to a file that was edited since."""
    text, seen = _read_text(path), {path.name}
    while text is not None and (found := _match_intact_header(text)) is not None:
        backup = found.group(2)
        if backup in seen:
            return
        seen.add(backup)
        text = None if backup == NO_FILE else _read_text(path.with_name(backup))
        if text is not None or backup == NO_FILE:
            yield text


def _match_intact_header(text: str) -> re.Match[str] | None:
    """Match the header of an applied file, or return None if the file was edited since."""
    found = _HEADER.match(text)
    if found is None or hashlib.sha256(text[found.end() :].encode()).hexdigest() != found.group(3):
        return None
    return found


def _plan_change(configuration: Configuration, path: Path, variant: str, base: str | None) -> ConfigChange:
    model, delta, before = configuration.variant.model, configuration.variant.delta, _read_text(path)
    body: str | None = None
    if delta:  # a new file has all of batching: servers complete no part of it
        measured_config, out = (
            model_config.parse(configuration.text, "measured"),
            _merge_config({}, delta, "variant"),
        )
        if {"max_batch_size", "dynamic_batching"} & set(delta):
            out.max_batch_size = measured_config.max_batch_size
            if measured_config.HasField("dynamic_batching"):
                out.dynamic_batching.CopyFrom(measured_config.dynamic_batching)
        body = model_config.to_text(out)
    if base is not None:
        body = _change_body(base, delta, str(path)) or (
            None if before == base else _HEADER.sub("", base, count=1)
        )
    if body is None or (before is not None and _HEADER.sub("", before, count=1) == body):
        return ConfigChange(model=model, path=path, before=before, after=before)
    backup = _choose_backup_path(path).name if before is not None else NO_FILE
    digest = hashlib.sha256(body.encode()).hexdigest()
    header = f"{_MARK}: {variant}; before: {backup}; sha256 of what follows: {digest}{newline_of(body)}"
    return ConfigChange(model=model, path=path, before=before, after=header + body)


def _change_body(before: str, delta: Mapping[str, Any], source: str) -> str | None:
    """Return a file's text with the change, edited in place if possible; None if it has these values."""
    if not delta:
        return None
    plain = before.removeprefix(_BYTE_ORDER_MARK)
    present = model_config.parse(plain, source)
    set_fields = {field.name for field, _ in present.ListFields()}  # without defaults
    own = {key: value for key, value in model_config.to_json(present).items() if key in set_fields}
    wanted = _merge_config(own, delta, source)
    if wanted == present:
        return None
    text = _HEADER.sub("", plain, count=1)
    changed = edited(text, present, wanted)
    if changed is not None:
        return changed
    lines = text.splitlines(keepends=True)
    top = "".join(itertools.takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), lines))
    comment = top.rstrip("\r\n") + newline_of(text) if top.strip() else ""
    return comment + model_config.to_text(wanted)


def _merge_config(own: Mapping[str, Any], delta: Mapping[str, Any], source: str) -> Any:
    return model_config.from_json(json.dumps(merge(own, delta)), source)


def _replace_file(path: Path, text: str | None) -> None:
    """Replace the file atomically and sync it; None deletes it."""
    if text is None:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            # the permissions of the file that is replaced
            fresh.chmod(path.stat().st_mode & 0o777)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _choose_backup_path(path: Path) -> Path:
    paths = (path.with_name(f"{path.name}.backup-{number}") for number in itertools.count(1))
    return next(backup for backup in paths if not backup.exists())


def _read_text(path: Path) -> str | None:
    try:
        # not read_text, which translates line endings
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read {path}: {exc}") from exc


def edited(text: str, present: Any, wanted: Any) -> str | None:
    """Edit `text`, which encodes `present`, so that it encodes `wanted`; return None if that is not possible.

    A changed field is rewritten at its first occurrence, a cleared one removed, a new one appended.
    """
    values = {
        field.name: model_config.to_text(_keep_field(wanted, field.name))
        for field in wanted.DESCRIPTOR.fields
        if _keep_field(present, field.name) != _keep_field(wanted, field.name)
    }
    fields = [field for field in outer_fields(text) if field.name in values]
    firsts = {field.name: field for field in reversed(fields)}
    out = text
    for field in reversed(fields):
        value = values[field.name]
        if value and firsts[field.name] is field:
            spelled = [each for each in fields if each.name == field.name]
            out = out[: field.start] + _format_field(value, text, spelled) + out[field.stop :]
        else:
            out = _remove_field(out, field)
    new = "".join(value for name, value in values.items() if name not in firsts)
    if new and out and not out.endswith("\n"):
        out += newline_of(text)
    out += new.replace("\n", newline_of(text))
    try:
        return out if model_config.parse(out, "edited") == wanted else None
    except ConfigError:
        return None


def newline_of(text: str) -> str:
    """Return the line ending of a text."""
    return "\r\n" if "\r\n" in text else "\n"


def _keep_field(message: Any, name: str) -> Any:
    """Return a copy of the message with this field only."""
    out = type(message)()
    out.CopyFrom(message)
    for field, _ in message.ListFields():
        if field.name != name:
            out.ClearField(field.name)
    return out


def _format_field(value: str, text: str, spelled: Sequence[FieldText]) -> str:
    """Return a field as protobuf prints it, indented as the original, on several lines only if it was."""
    first = spelled[0]
    line = text[text.rfind("\n", 0, first.start) + 1 : first.start]
    indent = "" if line.strip() else line
    elements = _NEXT_ELEMENT.split(value.rstrip("\n"))
    if not any("\n" in text[field.start : field.stop] for field in spelled):
        elements = [" ".join(each.strip() for each in element.split("\n")) for element in elements]
    return "\n".join(elements).replace("\n", newline_of(text) + indent)


def _remove_field(text: str, field: FieldText) -> str:
    """Return the text without a field, and without its line if nothing else is on it."""
    before, after = text[: field.start], text[field.end :]
    kept = before.rstrip(" \t")
    line_end = _LINE_END.match(after)
    if line_end is None:
        return before + after.lstrip(" \t")
    alone = not kept or kept.endswith("\n")
    return kept + after[line_end.end() if alone else line_end.start(1) :]
