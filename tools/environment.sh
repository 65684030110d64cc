# Sourced by the other tools: makes the virtual environment that they run in. Needs bash, and Python 3.11 or newer.
#
# prepare_environment ROOT [EXTRA] creates ROOT/.venv where it is missing or broken, and installs ROOT into it, with
# that extra, whenever pyproject.toml changed since the last installation that succeeded. Where there is an NVIDIA driver,
# the extra for its CUDA is installed, too, unless SPARSENN_GPU is set to no. It says so on stderr; where there is nothing
# to do it says nothing. Runs at the same time wait for each other where flock exists.

_say() { printf 'sparsenn: %s\n' "$*" >&2; }

_digest() { # of everything that an installation depends on; the folder counts because .venv refers to it
  { printf '%s\n' "$1"; cat "$1/pyproject.toml"; } | cksum
}

_installed() { # ROOT EXTRA
  [ -x "$1/.venv/bin/python" ] && [ "$(cat "$1/.venv/.installed-${2:-base}" 2>/dev/null)" = "$(_digest "$1")" ]
}

_find_python() { # prints the first Python that is new enough and can make environments
  local name version without_venv=
  for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
    version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))' \
      2>/dev/null) || continue
    if "$name" -c 'import venv, ensurepip' 2>/dev/null; then
      printf '%s\n' "$name"
      return 0
    fi
    without_venv=${without_venv:-$version}
  done
  if [ -n "$without_venv" ]; then
    _say "Python $without_venv has no venv module; install it (Debian, Ubuntu: sudo apt install python$without_venv-venv)"
  else
    _say "no Python 3.11 or newer among python3, python3.14 … python3.11, python; install one (https://www.python.org)"
  fi
  return 1
}

_create() { # ROOT
  local python
  python=$(_find_python) || return 1
  _say "creating .venv with $("$python" --version) (once)"
  "$python" -m venv --clear "$1/.venv" || { _say "could not create $1/.venv"; return 1; }
}

_gpu_extra() { # PYTHON: prints the extra for the NVIDIA driver that is here; nothing where there is none
  local cuda driver=
  [ "${SPARSENN_GPU:-}" != no ] || return 0
  cuda=$("$1" -c 'import ctypes
number = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
print(number.value // 1000)' 2>/dev/null) || cuda=
  case $cuda in
    12) echo cuda12 && return ;;
    1[3-9]) echo cuda13 && return ;;
  esac
  command -v nvidia-smi >/dev/null || return 0
  read -r driver < <(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || return 0
  case ${driver%%.*} in
    '' | *[!0-9]*) ;;
    *) if [ "${driver%%.*}" -ge 580 ]; then echo cuda13; elif [ "${driver%%.*}" -ge 525 ]; then echo cuda12; fi ;;
  esac
}

_pip_install() { # ROOT EXTRAS
  (cd "$1" && .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".${2:+[$2]}" >&2)
}

_install() { # ROOT EXTRA
  local python=$1/.venv/bin/python gpu
  rm -f "$1"/.venv/.installed-*
  "$python" -m pip --version >/dev/null 2>&1 || _create "$1" || return 1
  _say "installing sparsenn and what it needs${2:+ (extra: $2)} into .venv (once, about a minute)"
  gpu=$(_gpu_extra "$python")
  if [ -n "$gpu" ]; then
    _say "an NVIDIA driver is here: installing what a GPU needs, too (extra: $gpu; SPARSENN_GPU=no leaves it out)"
    _pip_install "$1" "${2:+$2,}$gpu" || { _say "the extra $gpu cannot be installed (see above); going on without"; gpu=; }
  fi
  [ -n "$gpu" ] || _pip_install "$1" "${2:-}" || {
    _say "the installation failed (see above); the next run tries again"
    return 1
  }
  _say "compiling the kernels (once, half a minute)"
  (cd "$1" && "$python" -m sparsenn kernels list --compile >/dev/null) || return 1
  local stamp
  for stamp in base ${2:+"${2%%-*}" "$2"}; do # test-frameworks includes test
    _digest "$1" >"$1/.venv/.installing" && mv "$1/.venv/.installing" "$1/.venv/.installed-$stamp" || return 1
  done
}

prepare_environment() { # ROOT [EXTRA]
  _installed "$1" "${2:-}" && return 0
  (
    trap 'exit 130' INT
    if command -v flock >/dev/null; then
      flock -n 9 || { _say "waiting for another installation to end"; flock 9; }
    fi
    _installed "$1" "${2:-}" || _install "$1" "${2:-}"
  ) 9<"$1/pyproject.toml"
}
