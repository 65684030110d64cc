"""Rows from files to files, in pieces: the bits of one run, whatever cuts it, and within the memory that is allowed."""

import json
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from pyarrow import parquet

from sparsenn import Network, Session
from sparsenn.distributed import streaming
from sparsenn.distributed.pieces import Piece, opened_pieces
from sparsenn.errors import DeviceError, FileFormatError, ResourceError, ShapeError, UsageError
from sparsenn.formats import from_dense
from sparsenn.io import Dataset, write_dataset
from sparsenn.io.challenge.tsv import read_categories, write_images
from sparsenn.io.tables import row_source
from sparsenn.layers import ReLU

WIDTH, ROWS = 48, 900


def stream(*given, **options):
    """With the same bits for a row whatever rows come with it, as products of a library need not give."""
    return streaming.stream(*given, **{"reproducible": True} | options)


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(1)
    weights = [
        sp.random(WIDTH, WIDTH, 0.2, format="csr", random_state=rng, dtype=np.float32) * np.float32(0.4)
        for _ in range(6)
    ]
    return Network.from_scipy(weights, -0.05, ReLU(clip=32))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(2)
    found = from_dense((rng.random((ROWS, WIDTH)) < 0.1).astype(np.float32))
    assert np.diff(found.indptr)[-1]  # text of triples says nothing of empty rows at the end
    return found


@pytest.fixture(scope="module")
def right(network, rows):
    return Session(network, device="cpu", reproducible=True).run(rows)


@pytest.fixture(scope="module")
def folder(network, rows, right, tmp_path_factory):
    """The rows in every kind of file."""
    made = tmp_path_factory.mktemp("rows")
    dense = rows.to_scipy().toarray()
    np.save(made / "rows.npy", dense)
    np.save(made / "doubles.npy", dense.astype(">f8"))
    write_dataset(Dataset("rows", network, rows, right.categories), made / "rows.h5")
    with h5py.File(made / "matrix.h5", "w") as file:
        file["inputs"] = dense
    write_images(made / "rows.tsv", rows)
    write_images(made / "rows.tsv.gz", rows)
    table = pa.table({f"column {number}": dense[:, number] for number in range(WIDTH)})
    parquet.write_table(table, made / "rows.parquet", row_group_size=101)
    return made


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(streaming, "LEAST_ROWS", 50)
    monkeypatch.setattr("sparsenn.io.arrays.stored.KEPT_BYTES", 1)  # so that memory is used again


def limit_for(size, devices=1, row=2 * 4 * WIDTH):
    """The memory limit at which pieces of dense rows, of which outputs are written, have so many rows."""
    return int(2 * size * (devices + streaming.SPARE_PIECES) * (row + 8 * WIDTH + 64))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def check_outputs(path, right):
    """Hold a file against one run: the bits of its outputs, or its categories."""
    if path.suffix == ".tsv":
        assert np.array_equal(read_categories(path), right.categories)
    elif path.suffix == ".npy":
        assert np.load(path).tobytes() == right.dense.tobytes()
    else:
        with h5py.File(path) as file:
            assert file["outputs"][()].tobytes() == right.dense.tobytes()


def pieces_folder(output):
    return output.with_name(f"{output.name}.pieces")


def done(output):
    """How many pieces are done."""
    log = pieces_folder(output) / "run.jsonl"
    return max(0, log.read_bytes().count(b"\n") - 1) if log.exists() else 0


# ---- The same bits ---------------------------------------------------------------------------------------------------


def test_a_file_of_almost_no_lines_for_very_many_rows_is_refused(network, tmp_path):
    (tmp_path / "rows.tsv").write_text("1\t1\t1\n2147483647\t1\t1\n")
    with pytest.raises(FileFormatError, match=r"rows\.tsv:2: 2,147,483,647 images for 2 entries"):
        stream(network, tmp_path / "rows.tsv", tmp_path / "found.tsv", device="cpu")
    (tmp_path / "rows.tsv").write_text("1\t1\t1\n100000\t1\t1\n")
    assert stream(network, tmp_path / "rows.tsv", device="cpu").inputs == 100_000


@pytest.mark.parametrize(
    "name", ["rows.npy", "doubles.npy", "rows.h5", "matrix.h5", "rows.parquet", "rows.tsv", "rows.tsv.gz"]
)
@pytest.mark.parametrize("most", [None, 250, 1])
def test_every_kind_of_rows_and_outputs(network, folder, right, tmp_path, monkeypatch, name, most):
    if most is not None:
        monkeypatch.setattr(streaming, "MOST_PIECE_ROWS", most if most > 1 else 97)
    found = stream(network, folder / name, tmp_path / "found.tsv", device="cpu")
    assert np.array_equal(found.categories, right.categories)
    check_outputs(tmp_path / "found.tsv", right)
    assert found.inputs == ROWS
    assert [layer.nonzeros for layer in found.statistics] == [layer.nonzeros for layer in right.statistics]
    if ".tsv" in name:
        with pytest.raises(UsageError, match=r"known only at its end; write \.tsv"):
            stream(network, folder / name, tmp_path / "found.npy", device="cpu")
        assert names(tmp_path) == ["found.tsv"]
        return
    for output in (tmp_path / "found.npy", tmp_path / "found.h5"):
        stream(network, folder / name, output, device="cpu")
        check_outputs(output, right)
    assert names(tmp_path) == ["found.h5", "found.npy", "found.tsv"]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("size", [33, 400])
def test_several_devices_and_sizes_of_pieces(network, folder, right, tmp_path, monkeypatch, count, size):
    monkeypatch.setattr("sparsenn.distributed.devices.gpus", lambda: ("cpu",) * count)
    limit = limit_for(size, count)
    found = stream(network, folder / "rows.npy", tmp_path / "found.npy", devices="all", memory_limit=limit)
    check_outputs(tmp_path / "found.npy", right)
    assert np.array_equal(found.categories, right.categories)
    assert found.notes[-1].startswith("Samples were shared by ")


@pytest.mark.gpu
def test_gpus_give_the_bits_of_the_cpu(network, folder, right, tmp_path):
    stream(network, folder / "rows.npy", tmp_path / "found.npy", devices="all", memory_limit=limit_for(60))
    check_outputs(tmp_path / "found.npy", right)


# ---- Runs that are cut -----------------------------------------------------------------------------------------------


CHILD = """
import sys
from pathlib import Path
import sparsenn
from sparsenn.distributed import streaming
streaming.LEAST_ROWS = 10
dataset = sparsenn.load(sys.argv[1], limit_inputs=1)
print("go", flush=True)
options = {"device": "cpu", "reproducible": True, "memory_limit": int(sys.argv[4])}
streaming.stream(dataset.network, sys.argv[2], sys.argv[3], resume=True, **options)
"""


def start(*arguments):
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("rows.npy", ".npy"),
        pytest.param("rows.tsv.gz", ".tsv", marks=pytest.mark.slow),
        pytest.param("rows.h5", ".h5", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_killed_is_gone_on_with(network, folder, right, tmp_path, name, suffix):
    output = tmp_path / f"found{suffix}"
    moments = np.random.default_rng(len(name)).integers(1, 20, 2)
    left = 0
    for more in moments:
        child = start(folder / "rows.h5", folder / name, output, limit_for(15))
        while child.poll() is None and done(output) < left + more:
            time.sleep(0.001)
        child.kill()
        _, told = child.communicate()
        assert child.returncode in (-signal.SIGKILL, 0), told
        left = done(output)
    child = start(folder / "rows.h5", folder / name, output, limit_for(15))
    _, told = child.communicate(timeout=100)
    assert child.returncode == 0, told
    check_outputs(output, right)
    assert names(tmp_path) == [output.name]


def cut_run(network, folder, output, name="rows.npy"):
    """Interrupt a run when three pieces are written."""
    written, real = [], streaming.Pieces.keep

    def keep(self, number, piece, outputs):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(number)
        real(self, number, piece, outputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming.Pieces, "keep", keep)
        with pytest.raises(KeyboardInterrupt):
            stream(network, folder / name, output, device="cpu", memory_limit=limit_for(40))


@pytest.mark.parametrize("name", ["rows.npy", "rows.h5", "rows.parquet", "rows.tsv"])
def test_only_what_is_not_done_is_computed(network, folder, right, tmp_path, monkeypatch, name):
    output = tmp_path / "found.tsv"
    cut_run(network, folder, output, name)
    size = json.loads((pieces_folder(output) / "run.jsonl").read_text().splitlines()[0])["size"]
    computed, real = [], Session._run_rows
    monkeypatch.setattr(Session, "_run_rows", lambda self, *given: computed.append(given[2]) or real(self, *given))
    found = stream(network, folder / name, output, device="cpu", resume=True, memory_limit=limit_for(77))
    assert sum(computed) == ROWS - 3 * size
    check_outputs(output, right)
    assert np.array_equal(found.categories, right.categories)
    assert "were done by an earlier run" in found.notes[-1]
    assert found.statistics == ()


def test_an_earlier_run_is_not_lost_unasked(network, folder, tmp_path):
    output = tmp_path / "found.npy"
    cut_run(network, folder, output)
    before = names(pieces_folder(output))
    with pytest.raises(UsageError, match=r"resume it \(--resume\)"):
        stream(network, folder / "rows.npy", output, device="cpu")
    assert names(pieces_folder(output)) == before


def test_other_rows_options_and_networks_are_refused(network, folder, tmp_path):
    output = tmp_path / "found.npy"
    cut_run(network, folder, output)
    other = Network(network.layers[:5])
    for given, file, options in (
        (network, "matrix.h5", {}),
        (network, "rows.npy", {"kernel": "scatter"}),
        (other, "rows.npy", {}),
    ):
        with pytest.raises(UsageError, match="of another network, other options or other samples"):
            stream(given, folder / file, output, device="cpu", resume=True, **options)


def test_a_log_whose_end_is_cut_or_damaged(network, folder, right, tmp_path):
    output = tmp_path / "found.npy"
    cut_run(network, folder, output)
    log = pieces_folder(output) / "run.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b"[", b"{"))
    with pytest.raises(UsageError, match=r"run\.jsonl is damaged"):
        stream(network, folder / "rows.npy", output, device="cpu", resume=True)
    log.write_bytes(whole[:-4])
    found = stream(network, folder / "rows.npy", output, device="cpu", resume=True)
    assert "were done by an earlier run" in found.notes[-1]
    check_outputs(output, right)


def test_a_second_run_into_one_file_is_refused(network, folder, tmp_path):
    output = tmp_path / "found.npy"
    with opened_pieces(output, lambda: "key", 10, resume=False) as pieces:
        pieces.keep(0, Piece(10, []), None)
        for resume in (False, True):
            with pytest.raises(ResourceError, match="another run is writing it"):
                stream(network, folder / "rows.npy", output, device="cpu", resume=resume)
    assert done(output) == 1


# ---- Errors ----------------------------------------------------------------------------------------------------------


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sparsenn ")]


def test_an_error_of_a_device_ends_all_and_keeps_what_is_done(network, folder, right, tmp_path, monkeypatch):
    output, real = tmp_path / "found.npy", Session._run_rows

    def fail(self, given, *rest):
        if done(output) > 1:
            raise DeviceError("gone")
        return real(self, given, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_run_rows", fail)
        with pytest.raises(DeviceError, match="gone"):
            stream(network, folder / "rows.npy", output, device="cpu", memory_limit=limit_for(40))
    assert not threads()
    assert not output.exists()
    stream(network, folder / "rows.npy", output, device="cpu", resume=True)
    check_outputs(output, right)


def faulty(folder, path, row):
    """Write a file of rows, of which one has an index that is out of range; return its path."""
    with h5py.File(folder / "rows.h5") as file:
        place = file["inputs/indices"].id.get_offset() + 2 * file["inputs/indptr"][row]
    path.write_bytes((folder / "rows.h5").read_bytes())
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff\xff")
    return path


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("row", [0, 690])
def test_a_fault_in_a_file(network, folder, tmp_path, device, row):
    path = faulty(folder, tmp_path / "rows.h5", row)
    with pytest.raises(FileFormatError, match=r"rows\.h5: rows from \d+ on: ") as caught:
        stream(network, path, tmp_path / "found.npy", device=device, memory_limit=limit_for(60))
    first = int(str(caught.value).split("rows from ")[1].split()[0])
    assert row - 200 < first <= row + 1
    assert len(str(caught.value).splitlines()) == 1
    assert not threads()
    assert not (tmp_path / "found.npy").exists()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda path: np.save(path, np.zeros((9, 5), np.float32)), ShapeError, "holds 9 × 5 numbers"),
        (lambda path: np.save(path, np.zeros((9, WIDTH), np.float32).T.copy().T), FileFormatError, "column by column"),
        (lambda path: np.save(path, np.array([["a"] * WIDTH])), FileFormatError, "must hold real numbers"),
        (lambda path: path.write_bytes(b"nothing"), FileFormatError, "not NumPy's, or damaged"),
        (lambda path: path.write_bytes(b""), FileFormatError, "not NumPy's, or damaged"),
    ],
)
def test_files_that_are_none_are_refused_and_leave_nothing(network, tmp_path, make, error, words):
    make(tmp_path / "rows.npy")
    with pytest.raises(error, match=words) as caught:
        stream(network, tmp_path / "rows.npy", tmp_path / "found.npy", device="cpu")
    assert len(str(caught.value).splitlines()) == 1
    assert names(tmp_path) == ["rows.npy"]


def test_a_table_with_gaps_or_texts_is_refused(network, tmp_path):
    columns = {f"column {number}": [1.0, 2.0] for number in range(WIDTH)}
    for column, words in (
        ([1.0, None], "row 2, column .column 3. holds nothing"),
        (["a", "b"], "holds .a. where a number is needed"),
    ):
        parquet.write_table(pa.table({**columns, "column 3": column}), tmp_path / "rows.parquet")
        with pytest.raises(FileFormatError, match=words):
            stream(network, tmp_path / "rows.parquet", device="cpu")


def test_other_kinds_of_outputs_and_too_little_memory_are_refused(network, folder, tmp_path):
    for output, options, error, words in (
        (tmp_path / "found.csv", {}, UsageError, "rows are streamed to"),
        (tmp_path / "found.tsv", {"classes": True}, UsageError, r"rows are streamed to \.npy"),
        (None, {"resume": True}, UsageError, "without an output there is nothing to resume"),
        (tmp_path / "none" / "found.npy", {}, ResourceError, "its folder does not exist"),
        (None, {"memory_limit": 2000}, ResourceError, "does not hold"),
    ):
        with pytest.raises(error, match=words):
            stream(network, folder / "rows.npy", output, device="cpu", **options)
    assert names(tmp_path) == []


# ---- Memory and overlap ----------------------------------------------------------------------------------------------


MEMORY = """
import resource, sys
import numpy as np, scipy.sparse as sp
from sparsenn import Network
from sparsenn.distributed.streaming import stream
network = Network.from_scipy([sp.identity(256, format="csr", dtype=np.float32)] * 3)
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
np.save(sys.argv[1] + "/small.npy", np.ones((5000, 256), np.float32))
stream(network, sys.argv[1] + "/small.npy", sys.argv[1] + "/small-out.npy", device="cpu", memory_limit="8M")
before = peak()
stream(network, sys.argv[1] + "/large.npy", sys.argv[1] + "/out.npy", device="cpu", memory_limit="32M")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is told in other units elsewhere")
def test_memory_stays_within_the_limit(tmp_path):
    rows = 150_000
    large = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float32, (rows, 256))
    large[:, 3] = np.arange(rows)
    large.flush()
    del large
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "large.npy").stat().st_size > 150e6
    assert int(done.stdout) < 40e6
    found = np.load(tmp_path / "out.npy", mmap_mode="r")
    assert np.array_equal(found[:, 3], np.arange(rows, dtype=np.float32))


def test_reading_goes_on_while_a_device_computes(network, folder, monkeypatch):
    """The next piece is read before the one at hand is done."""
    read, real = threading.Event(), Session._run_rows
    stored = row_source.Stored.read

    def told(self, first, last):
        if first:
            read.set()
        return stored(self, first, last)

    def run(self, *given):
        assert read.wait(20)
        return real(self, *given)

    monkeypatch.setattr(row_source.Stored, "read", told)
    monkeypatch.setattr(Session, "_run_rows", run)
    stream(network, folder / "rows.npy", device="cpu", memory_limit=limit_for(100))


def on_a_gpu(monkeypatch):
    """Have streaming take the CPU for a device with memory of its own."""
    there = SimpleNamespace(device="cuda", in_host_memory=False)
    monkeypatch.setattr(streaming, "choose_kernels", lambda *_: (there, {}))
    return there


@pytest.mark.parametrize("devices", [1, 4])
def test_pieces_for_gpus_fill_the_memory_and_fit_into_it(network, monkeypatch, devices):
    source = SimpleNamespace(rows=10**9, row_bytes=200.0)
    size = streaming.rows_a_piece(source, network, on_a_gpu(monkeypatch), devices, 10**9, False)
    pieces = devices + streaming.SPARE_PIECES - 1 + streaming.WAITING_PIECES
    assert 0.7e9 < pieces * size * source.row_bytes < 1e9


def test_progress_tells_rows(network, folder):
    for name in ("rows.npy", "rows.tsv"):
        steps = []
        stream(network, folder / name, device="cpu", progress=lambda *step, steps=steps: steps.append(step))
        assert steps[-1] == (f"run {name}", ROWS, ROWS)
    assert all(done < total for _, done, total in steps[:-1])
