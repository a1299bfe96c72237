#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Set up a virtual environment with microc in it, and the tools it works with where they are missing and may be installed.
#   scripts/setup.sh VENV REQUIREMENT      (REQUIREMENT: '.' or '.[test]')
set -eu
venv=$1
requirement=$2

missing=
rare=
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need cc gcc
need clang clang
need arm-none-eabi-gcc "gcc-arm-none-eabi libnewlib-arm-none-eabi"
need qemu-system-arm qemu-system-arm
need gdb-multiarch gdb-multiarch
case "$requirement" in
*test*)
    need riscv64-unknown-elf-gcc "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
    need avr-gcc "gcc-avr avr-libc"
    need qemu-system-riscv32 qemu-system-misc
    need simavr simavr
    echo '#include <simavr/sim_avr.h>' | cc -E - >/dev/null 2>&1 || missing="$missing libsimavr-dev"
    need xtensa-lx106-elf-gcc "gcc-xtensa-lx106 picolibc-xtensa-lx106-elf"
    need aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    need arm-linux-gnueabihf-gcc "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"
    need riscv64-linux-gnu-gcc "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"
    need qemu-aarch64 qemu-user
    need node nodejs
    need cmake cmake
    need ccache ccache
    need cppcheck cppcheck
    need clang-tidy clang-tidy
    need arduino-builder "arduino-builder arduino-core-avr"
    command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || rare=chromium
    command -v clang-19 >/dev/null 2>&1 || rare="$rare clang-19"
    command -v llvm-mca-19 >/dev/null 2>&1 || rare="$rare llvm-19"
    command -v wasm-ld-19 >/dev/null 2>&1 || rare="$rare lld-19 wasi-libc libclang-rt-19-dev-wasm32"
    ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 || rare="$rare pocl-opencl-icd"
    # the fuzzer's library
    ls "$(clang -print-runtime-dir 2>/dev/null)"/libclang_rt.fuzzer-*.a >/dev/null 2>&1 || missing="$missing libclang-rt-dev"
    ;;
esac
case " $missing " in *" gcc "*) missing="$missing libc6-dev" ;; esac
python=
command -v python3 >/dev/null 2>&1 || python=" python3"
python3 -c 'import ensurepip, venv' 2>/dev/null || python="$python python3-venv"

if [ "$(id -u)" = 0 ]; then
    as_root="sh -c"
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n sh -c"
else
    as_root=
fi
install() {
    echo "setup: installing$1" >&2
    $as_root "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $1" >&2
}
if [ -n "$python$missing$rare" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: missing$python$missing $rare, and there is no apt-get to install them; going on without" >&2
        python='' missing='' rare=''
    elif [ -z "$as_root" ]; then
        echo "setup: missing; as root: apt-get install --no-install-recommends$python$missing $rare" >&2
        python='' missing='' rare=''
    fi
fi
[ -z "$python" ] || install "$python" || echo "setup: apt-get failed; going on without" >&2

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "setup: microc needs Python 3.11 or newer, this is $(python3 --version 2>&1 || echo none)" >&2
    exit 5
fi
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# pip and apt-get take a minute each, most of it on one core: they run side by side
echo "setup: installing $requirement into $venv" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$requirement" &
pip=$!
trap 'kill "$pip" 2>/dev/null; exit 130' INT TERM
[ -z "$missing" ] || install "$missing" || echo "setup: apt-get failed; going on without" >&2
# one by one, for some distributions have no such package, and few tests want it
for package in $rare; do
    install " $package" || echo "setup: no $package; what it is for is not tested" >&2
done
wait "$pip"
trap - INT TERM
case "$requirement" in
*test*)
    # the emulator of the RP2040, beside this Python: where npm is absent, its tests skip
    if command -v npm >/dev/null 2>&1 && [ ! -d "$venv/lib/node_modules/rp2040js" ]; then
        npm install --silent --no-fund --global --prefix "$venv" rp2040js@1 >&2 || echo "setup: no rp2040js; going on without" >&2
    fi
    ;;
esac
# as pip does for what is no checkout: where Python is told to write no bytecode, every command would compile all files
"$venv/bin/python" -m compileall -q microc
