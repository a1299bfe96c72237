#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds hazard3-sim, which simulates the RISC-V core of RP2350 cycle by cycle (boards/hazard3-sim.toml), from the core's own Verilog:
#
#     scripts/hazard3/build.sh [FOLDER]        FOLDER: for sources and objects (default: build/hazard3); the program will lie there
#
# Needs git, Python, a C++ compiler and Verilator (apt-get install -y verilator), and the network once; with HAZARD3=CLONE, a clone
# of github.com/Wren6991/Hazard3, it needs none. The core is under the licence Apache 2.0; nothing of it is part of this project.
set -e
VERSION=v1.0.1
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-build/hazard3}
rm -rf "$folder/core" && mkdir -p "$folder/core"
cd "$folder"
if [ -n "$HAZARD3" ]; then
    git --git-dir="$HAZARD3" archive "$VERSION" hdl | tar x -C core
else
    git clone -q --depth 1 --branch "$VERSION" https://github.com/Wren6991/Hazard3 core
fi
python3 "$here/unroll.py" core/hdl/hazard3_frontend.v
files=$(sed -n 's#^file #core/hdl/#p' core/hdl/hazard3.f)
# shellcheck disable=SC2086
verilator --cc --exe --Mdir objects -O3 --x-assign 0 --x-initial 0 -Wno-fatal -Wno-lint --top-module top -Icore/hdl \
    -CFLAGS "-DCORE='\"$VERSION\"'" "$here/top.v" $files "$here/main.cpp" -o ../hazard3-sim
make -s -C objects -f Vtop.mk OPT_FAST=-O2 OPT_SLOW=-O0 VM_PARALLEL_BUILDS=0
echo "$PWD/hazard3-sim"
