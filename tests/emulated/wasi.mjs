// SPDX-License-Identifier: Apache-2.0
// Runs a program of WebAssembly with its standard input and output (WASI).
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const wasi = new WASI({ version: "preview1", args: ["program"], returnOnExit: true });
const program = await WebAssembly.compile(await readFile(process.argv[2]));
process.exit(wasi.start(await WebAssembly.instantiate(program, wasi.getImportObject())));
