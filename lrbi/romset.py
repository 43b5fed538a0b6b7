"""The ROM folder: every layer's factor ROMs as files, and the manifest that tells of them.

``docs/rom-format.md`` is its definition.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrbi.atomic import replacing, unwritable
from lrbi.config import DecoderConfig
from lrbi.errors import InputError
from lrbi.factorfile import digest, restore_layer
from lrbi.layer import CompressedLayer
from lrbi.layout import from_number, row_bytes, word_sums
from lrbi.rom import RomImage, mask_image, odd_word, rom_factors, rom_images
from lrbi.romfiles import FORMATS, show_number, show_word
from lrbi.testbench import testbench
from lrbi.tiles import TileGrid

FORMAT = 1
MANIFEST = "manifest.json"

Progress = Callable[[str, int, int], None]
"""Called with a layer's name, the files done and the files in all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerRoms:
    """One layer as its ROM files hold it."""

    metadata: Mapping[str, Any]
    """What the factor file says of the layer beside its arrays."""
    rank: int
    """The layer's rank k."""
    tile: tuple[int, int]
    """Rows R and columns C of a tile."""
    ranks: tuple[int, ...]
    """Rank that each tile uses."""
    lanes: int
    """I_p rows a word."""
    iz_rows: int
    """I_z rows a word."""
    ip: RomImage
    """The I_p ROM."""
    iz: RomImage
    """The I_z ROM."""
    mask: RomImage | None
    """The mask beats that a decoder must give, where they were exported and asked for."""

    def layer(self) -> CompressedLayer:
        """The layer of which these are the ROMs."""
        factors = rom_factors(
            self.ip,
            self.iz,
            tiles=len(self.ranks),
            tile=self.tile,
            rank=self.rank,
            lanes=self.lanes,
            iz_rows=self.iz_rows,
        )
        return restore_layer(self.metadata, *factors, np.array(self.ranks, dtype=np.uint16))


@dataclass(frozen=True, kw_only=True, eq=False)
class RomSet:
    """A ROM folder as found: all files read, whole and in agreement."""

    layers: Mapping[str, LayerRoms]
    """The layers by name."""
    files: tuple[Path, ...]
    """The files read, the manifest first."""
    factors_sha256: str
    """Digest of the factor file that was exported."""


def export_roms(
    layers: Mapping[str, CompressedLayer],
    folder: str | os.PathLike[str],
    *,
    formats: Iterable[str] = ("mem",),
    lanes: int = 1,
    iz_rows: int = 1,
    vectors: bool = False,
    among: Iterable[str] = (),
    on_file: Progress | None = None,
) -> dict[str, Any]:
    """Write the factor ROMs of layers to a folder, in all the formats, and return the manifest.

    A word holds ``lanes`` rows of I_p or ``iz_rows`` of I_z. With ``vectors`` each layer gets its
    mask rows and a self-checking bench too, and the format ``mem``, which the bench reads. Names of
    files are told apart from those of all layers in ``among`` too, those of one factor file. Files
    move into place together, the manifest last; what the folder's former manifest names and the
    new one does not is removed, if it is still as it was exported.
    """
    if not isinstance(layers, Mapping):
        raise InputError(
            f"Layers must be a mapping of names to layers, not {type(layers).__name__}"
        )
    if not layers:
        raise InputError("An export must have at least one layer, not none")
    chosen = _formats(formats, vectors)
    sizes = DecoderConfig(rank=1, tile_rows=1, tile_cols=1, lanes=lanes, iz_rows=iz_rows)
    folder = Path(folder)
    former = _former_files(folder)
    stems = file_stems({*layers, *among})
    names = {name: stem for name, stem in stems.items() if name in layers}
    entries = {}
    with _made(folder), ExitStack() as stack:

        def write(name: str, content: bytes) -> str:
            stack.enter_context(replacing(folder / name)).write_bytes(content)
            return hashlib.sha256(content).hexdigest()

        # The first to be entered is the last to move.
        manifest_file = stack.enter_context(replacing(folder / MANIFEST))
        for name, (stem, identifier) in names.items():
            entries[name] = _write_layer(
                layers[name],
                _Job(name, stem, identifier, chosen, sizes.lanes, sizes.iz_rows, vectors),
                write,
                on_file or _no_progress,
            )
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "formats": list(chosen),
            "vectors": vectors,
            "config": {"lanes": sizes.lanes, "iz_rows": sizes.iz_rows},
            "factors_sha256": digest(layers),
            "layers": entries,
        }
        manifest_file.write_text(_manifest_text(manifest))
    _remove_stale(folder, former, {name for name, _ in _files(manifest)})
    return manifest


def read_roms(
    folder: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002
    *,
    on_file: Progress | None = None,
) -> RomSet:
    """Read a ROM folder without its factor file: every file, or those of one format.

    A file that is missing, damaged or at odds with another is refused.
    """
    folder = Path(folder)
    try:
        manifest = _read_manifest(folder)
        if format is not None and format not in manifest["formats"]:
            listed = ", ".join(manifest["formats"])
            raise InputError(f"Format must be one that was exported ({listed}), not {format!r}")
        files = [folder / MANIFEST]
        layers = {}
        for name, entry in manifest["layers"].items():
            layers[name], read = _read_layer(folder, name, entry, format, on_file or _no_progress)
            files += read
    except _FolderError as error:
        raise InputError(f"ROM folder {folder} cannot be used: {error}") from error
    return RomSet(layers=layers, files=tuple(files), factors_sha256=manifest["factors_sha256"])


def import_roms(
    folder: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002
    *,
    on_file: Progress | None = None,
) -> dict[str, CompressedLayer]:
    """The layers that were exported to a ROM folder; saved, they make the same factor file."""
    return restore(read_roms(folder, format, on_file=on_file))


def restore(roms: RomSet) -> dict[str, CompressedLayer]:
    """The layers of a ROM folder that was read."""
    folder = roms.files[0].parent
    layers = {}
    for name, found in roms.layers.items():
        try:
            layer = layers[name] = found.layer()
        except (InputError, OverflowError) as error:
            raise InputError(
                f"ROM folder {folder} cannot be used: layer {name}: {error}"
            ) from error
        if found.mask is None:
            continue
        wanted = mask_image(layer, lanes=found.lanes)
        at = _first_difference(wanted, found.mask)
        if at is not None:
            raise InputError(
                f"ROM folder {folder} cannot be used: layer {name}: mask word {at} must be "
                f"{show_word(wanted, at)} by its factors, not {show_word(found.mask, at)}"
            )
    if digest(layers) != roms.factors_sha256:
        raise InputError(
            f"ROM folder {folder} cannot be used: its layers do not match factors_sha256"
        )
    return layers


def file_stems(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """What the files of each layer begin with, and the C and Verilog identifier that goes with it.

    Both are told apart without regard to case. The first of several alike keeps its name.
    """
    ordered = sorted(names)
    stems = _distinct({name: _stem(name) for name in ordered}, "-")
    identifiers = _distinct(
        {name: re.sub(r"\W", "_", stem, flags=re.ASCII) for name, stem in stems.items()}, "_"
    )
    return {name: (stems[name], identifiers[name]) for name in ordered}


_LONGEST = 200  # with what is added, below the 255 bytes that file systems allow
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def _stem(name: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_LONGEST]
    stem = re.sub(r"^[.-]", "_", stem)  # no hidden file, and none that looks like an option
    return f"_{stem}" if not stem or _DEVICES.match(stem) else stem


def _distinct(wanted: Mapping[str, str], sign: str) -> dict[str, str]:
    """The names wanted, those that are taken followed by ``sign`` and a number from 2."""
    taken: dict[str, str] = {}
    for key, name in wanted.items():
        taken.setdefault(name.lower(), key)
    result = {}
    for key, name in wanted.items():
        free, number = name, 2
        while taken.get(free.lower(), key) != key:
            free, number = f"{name}{sign}{number}", number + 1
        taken[free.lower()] = key
        result[key] = free
    return result


@dataclass(frozen=True)
class _Job:
    """How one layer is exported."""

    name: str
    stem: str
    identifier: str
    formats: tuple[str, ...]
    lanes: int
    iz_rows: int
    vectors: bool


def _no_progress(name: str, done: int, total: int) -> None:
    """Tells nobody."""


def _formats(formats: Iterable[str], vectors: bool) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys([formats] if isinstance(formats, str) else formats))
    for name in chosen:
        if name not in FORMATS:
            raise InputError(f"Format must be one of {', '.join(FORMATS)}, not {name!r}")
    if not chosen:
        raise InputError("An export must have at least one format, not none")
    return chosen if "mem" in chosen or not vectors else (*chosen, "mem")


def _write_layer(
    layer: CompressedLayer, job: _Job, write: Callable[[str, bytes], str], on_file: Progress
) -> dict[str, Any]:
    """Write one layer's files; its entry in the manifest."""
    ip, iz = rom_images(layer, lanes=job.lanes, iz_rows=job.iz_rows)
    rank, (rows, cols), tiles = layer.rank, layer.tile, len(layer.tiles)
    images = {"ip": ip, "iz": iz}
    total = len(images) * len(job.formats) + 2 * job.vectors
    bench = ""
    if job.vectors:
        images["mask"] = mask_image(layer, lanes=job.lanes)
        decoder = DecoderConfig(
            rank=rank, tile_rows=rows, tile_cols=cols, lanes=job.lanes, iz_rows=job.iz_rows
        )
        bench = testbench(decoder, tiles=tiles, stem=job.stem, identifier=job.identifier)
    done = 0
    roms = {}
    for kind, image in images.items():
        files = []
        for name in job.formats if kind != "mask" else ("mem",):
            file_name = f"{job.stem}.{kind}.{name}"
            content = FORMATS[name].encode(image, f"{job.identifier}_{kind}")
            facts = {"name": file_name, "format": name, "width": image.width, "depth": image.depth}
            files.append(facts | {"sha256": write(file_name, content)})
            on_file(job.name, done := done + 1, total)
        plain, weighted = word_sums(image.words)
        per_tile = image.depth // tiles
        roms[kind] = {
            "width": image.width,
            "depth": image.depth,
            "words_per_tile": per_tile,
            "base_addresses": list(range(0, image.depth, per_tile)),
            "sum": f"{plain:x}",
            "weighted_sum": f"{weighted:x}",
            "files": files,
        }
    entry = {
        "stem": job.stem,
        "identifier": job.identifier,
        "config": {
            "rank": rank,
            "tile_rows": rows,
            "tile_cols": cols,
            "lanes": job.lanes,
            "iz_rows": job.iz_rows,
        },
        "metadata": layer.metadata(),
        "tiles": tiles,
        "ranks": layer.ranks.tolist(),
        "roms": roms,
    }
    if job.vectors:
        name = f"{job.stem}.tb.v"
        entry["testbench"] = {"name": name, "sha256": write(name, bench.encode())}
        on_file(job.name, total, total)
    return entry


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    text = json.dumps(manifest, indent=2, allow_nan=False)
    # Numbers of tiles on one line, not on one each; no string of JSON holds a line feed.
    text = re.sub(r"\[\n\s+(?=\d)|(?<=\d)\n\s+(?=\])", lambda found: found[0][:1].strip(), text)
    return re.sub(r"(?<=\d),\n\s+(?=\d)", ", ", text) + "\n"


def _files(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and digest of every file that a manifest names."""
    for entry in manifest["layers"].values():
        for rom in entry["roms"].values():
            yield from ((file["name"], file["sha256"]) for file in rom["files"])
        if "testbench" in entry:
            yield entry["testbench"]["name"], entry["testbench"]["sha256"]


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder, made with its parents if need be, and taken away again if all fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Output {folder} must be a folder, but is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise unwritable(folder, error) from error
        raise


def _former_files(folder: Path) -> list[tuple[str, str]]:
    """The files that the folder's manifest names, if there is one; one that is not ours stays."""
    path = folder / MANIFEST
    if not path.exists():
        return []
    try:
        return list(_files(_read_manifest(folder)))
    except _NewerError:
        return []
    except _FolderError as error:
        raise InputError(
            f"Output {path} must be a manifest that lrbi wrote, so as not to lose another "
            "(remove it, or choose another folder)"
        ) from error


def _remove_stale(folder: Path, former: list[tuple[str, str]], made: set[str]) -> None:
    """Remove files of a former export, unless they were changed since or made again."""
    kept = {name.lower() for name in made}  # on some systems a name in other letters is the same
    for name, sha256 in former:
        path = folder / name
        with suppress(OSError):
            if name.lower() in kept or not path.is_file():
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
                path.unlink()


class _FolderError(InputError):
    """A refusal that still lacks the folder's name."""


class _NewerError(_FolderError):
    """A manifest of a format that is not known yet."""


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, if it is whole and of a known format and says possible things."""
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise _FolderError("it is no folder" if folder.exists() else "there is none")
        if path.exists() and not path.is_file():
            raise _FolderError(f"its {MANIFEST} is a folder, a device or a pipe")
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise _FolderError(f"it has no {MANIFEST}") from error
    except OSError as error:
        raise _FolderError(f"its {MANIFEST} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, _FolderError):
            raise
        raise _FolderError(f"its {MANIFEST} is no JSON, so it is damaged") from error
    number = manifest.get("format") if isinstance(manifest, dict) else None
    if type(number) is not int or number < 1:
        raise _FolderError(f"its {MANIFEST} says no format number")
    if number > FORMAT:
        raise _NewerError(
            f"its format is {number}, and this version reads up to {FORMAT} (update lrbi)"
        )
    _check_manifest(manifest)
    return manifest


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Refuse a manifest that says impossible things; readers rely on every one of these."""
    _typed(manifest, "", factors_sha256=str, formats=list, layers=dict)
    if not manifest["layers"]:
        raise _FolderError(f"{MANIFEST}: it has no layers")
    for name, entry in manifest["layers"].items():
        where = f"layers[{name!r}]"
        if name != name.encode(errors="replace").decode():
            raise _wrong(where, "must have a name that is Unicode")
        _typed(entry, where, config=dict, metadata=dict, ranks=list, roms=dict, identifier=str)
        if not re.fullmatch(r"[A-Za-z0-9_]{1,255}", entry["identifier"]):
            raise _wrong(f"{where}.identifier")
        sizes = _sizes(entry, where)
        if not {"ip", "iz"} <= set(entry["roms"]) <= set(sizes):
            raise _wrong(f"{where}.roms")
        for kind, rom in entry["roms"].items():
            at = f"{where}.roms.{kind}"
            width, per_tile, tiles = sizes[kind]
            _typed(rom, at, sum=str, weighted_sum=str, files=list, base_addresses=list)
            wanted = {"width": width, "depth": tiles * per_tile, "words_per_tile": per_tile}
            for key, value in wanted.items():
                if rom.get(key) != value:
                    raise _wrong(f"{at}.{key}", f"must be {value}, not {rom.get(key)!r}")
            if rom["base_addresses"] != [tile * per_tile for tile in range(tiles)]:
                raise _wrong(f"{at}.base_addresses")
            if not all(re.fullmatch("[0-9a-f]+", rom[key]) for key in ("sum", "weighted_sum")):
                raise _wrong(f"{at}.sum")
            for file in rom["files"]:
                _check_file(file, f"{at}.files")
                if (file.get("width"), file.get("depth")) != (width, tiles * per_tile):
                    raise _wrong(f"{at}.files", "must have the width and depth of their ROM")
                _typed(file, f"{at}.files", format=str)
                if file["format"] not in FORMATS:
                    raise _wrong(f"{at}.files", f"has an unknown format {file['format']!r}")
            found = [file["format"] for file in rom["files"]]
            if found != (["mem"] if kind == "mask" else manifest["formats"]) or not found:
                raise _wrong(f"{at}.files", "must be one of each format")
        if "testbench" in entry:
            _check_file(entry["testbench"], f"{where}.testbench")


def _sizes(entry: dict[str, Any], where: str) -> dict[str, tuple[int, int, int]]:
    """Width, words a tile, and tiles of each ROM of a layer, from its configuration."""
    config, metadata = entry["config"], entry["metadata"]
    keys = ("rank", "tile_rows", "tile_cols", "lanes", "iz_rows")
    rank, rows, cols, lanes, iz_rows = numbers = [config.get(key) for key in keys]
    shape = metadata.get("shape")
    if not (isinstance(shape, list) and len(shape) == 2):
        raise _wrong(f"{where}.metadata.shape")
    if not all(type(number) is int and number >= 1 for number in (*numbers, *shape)):
        raise _wrong(f"{where}.config", "must be whole numbers of at least 1")
    if (metadata.get("rank"), metadata.get("tile")) != (rank, [rows, cols]):
        raise _wrong(f"{where}.config", "must be that of the metadata")
    down, across = TileGrid((shape[0], shape[1]), (rows, cols)).grid
    ranks = entry["ranks"]
    if not down * across == len(ranks) == entry.get("tiles"):
        raise _wrong(f"{where}.ranks", f"must be those of {down * across} tiles, not {len(ranks)}")
    if not all(type(rank) is int and 0 <= rank <= 65535 for rank in ranks):
        raise _wrong(f"{where}.ranks")
    beats = -(-rows // lanes)
    return {
        "ip": (rank * lanes, beats, len(ranks)),
        "iz": (cols * iz_rows, -(-rank // iz_rows), len(ranks)),
        "mask": (cols * lanes, beats, len(ranks)),
    }


def _check_file(file: object, where: str) -> None:
    _typed(file, where, name=str, sha256=str)
    name = file["name"]  # type: ignore[index]  # _typed has seen to it
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}", name):
        raise _wrong(where, f"must be plain names of files in the folder, not {name!r}")


def _typed(value: object, where: str, **kinds: type) -> None:
    if not isinstance(value, dict):
        raise _wrong(where)
    for key, kind in kinds.items():
        if not isinstance(value.get(key), kind):
            raise _wrong(f"{where}.{key}".lstrip("."))


def _wrong(where: str, what: str = "is missing or wrong") -> _FolderError:
    return _FolderError(f"{MANIFEST}: {where} {what}")


def _read_layer(
    folder: Path, name: str, entry: dict[str, Any], only: str | None, on_file: Progress
) -> tuple[LayerRoms, list[Path]]:
    images: dict[str, RomImage] = {}
    paths: list[Path] = []
    bench = entry.get("testbench") if only is None else None
    wanted = {
        kind: [file for file in rom["files"] if only in (None, file["format"])]
        for kind, rom in entry["roms"].items()
    }
    total = sum(map(len, wanted.values())) + bool(bench)
    for kind, files in wanted.items():
        for file in files:
            path = folder / file["name"]
            identifier = f"{entry['identifier']}_{kind}"
            image = _read_image(path, file, entry["roms"][kind], identifier)
            at = _first_difference(images.setdefault(kind, image), image)
            if at is not None:
                place = FORMATS[file["format"]].place(at, image.width, image.depth)
                raise InputError(
                    f"ROM file {path} cannot be used: {place} is {show_word(image, at)}, but "
                    f"{show_word(images[kind], at)} in {paths[-1].name}"
                )
            paths.append(path)
            on_file(name, len(paths), total)
    if bench:
        path = folder / bench["name"]
        if hashlib.sha256(_content(path, 1 << 20)).hexdigest() != bench["sha256"]:
            raise InputError(f"ROM file {path} cannot be used: it does not match its digest")
        paths.append(path)
        on_file(name, total, total)
    config = entry["config"]
    roms = LayerRoms(
        metadata=entry["metadata"],
        rank=config["rank"],
        tile=(config["tile_rows"], config["tile_cols"]),
        ranks=tuple(entry["ranks"]),
        lanes=config["lanes"],
        iz_rows=config["iz_rows"],
        ip=images["ip"],
        iz=images["iz"],
        mask=images.get("mask"),
    )
    return roms, paths


def _read_image(path: Path, file: dict[str, Any], rom: dict[str, Any], identifier: str) -> RomImage:
    """The image in one file, whose words are read first, so that a fault can be located."""
    file_format, width, depth = FORMATS[file["format"]], rom["width"], rom["depth"]
    # No format takes as much for a word; a file may be longer than it should be, without end.
    content = _content(path, 4096 + depth * (width + 64))
    try:
        image = file_format.decode(content, width, depth, identifier)
        if hashlib.sha256(content).hexdigest() == file["sha256"]:
            return image
        odd = odd_word(image, (int(rom["sum"], 16), int(rom["weighted_sum"], 16)))
        if odd is not None:
            at, then = odd
            words = image.words.copy()
            words[at] = from_number(then, row_bytes(width))
            mended = file_format.encode(RomImage(width, words), identifier)
            if hashlib.sha256(mended).hexdigest() == file["sha256"]:
                place, now = file_format.place(at, width, depth), show_word(image, at)
                raise InputError(f"{place} must be {show_number(then, width)}, not {now}")
        raise InputError("it does not match its digest, in more than one word")
    except InputError as error:
        raise InputError(f"ROM file {path} cannot be used: {error}") from error


def _content(path: Path, limit: int) -> bytes:
    """What a file holds, up to a limit."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"ROM file {path} cannot be used: it is a folder, a device or a pipe")
        with path.open("rb") as file:
            return file.read(min(limit, path.stat().st_size))
    except FileNotFoundError as error:
        raise InputError(
            f"ROM file {path} cannot be used: it is missing (the manifest names it)"
        ) from error
    except OSError as error:
        raise InputError(f"ROM file {path} cannot be used: {error.strerror or error}") from error


def _first_difference(one: RomImage, other: RomImage) -> int | None:
    """The first word in which two images of one size differ."""
    if one is other:
        return None
    rows = np.flatnonzero((one.words != other.words).any(axis=1))
    return int(rows[0]) if len(rows) else None
