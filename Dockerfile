# SPDX-License-Identifier: Apache-2.0
# microc with what it needs to build, flash into emulators and measure:
#   docker build -t microc . && docker run --rm -v "$PWD:/work" microc check model.tflite --board netduinoplus2
FROM debian:12-slim AS develop
RUN apt-get update && apt-get install -y --no-install-recommends \
    git make gcc libc6-dev clang python3 python3-venv \
    gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm gdb-multiarch \
    gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc \
    gcc-avr avr-libc libsimavr-dev \
    && rm -rf /var/lib/apt/lists/*

FROM develop
COPY . /src
RUN python3 -m venv /opt/microc && /opt/microc/bin/pip install --no-cache-dir /src && rm -rf /src
ENV PATH="/opt/microc/bin:$PATH"
WORKDIR /work
ENTRYPOINT ["microc"]
CMD ["--help"]
