// SPDX-License-Identifier: Apache-2.0
// Runs an export for web pages in Node, without its page: prints what it answers to its sample, as the other examples do.
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const vm = require("node:vm");

const folder = process.argv[2];
const read = (name) => readFileSync(join(folder, name), "utf8");
const context = vm.createContext({ WebAssembly, performance, console });
for (const name of ["manifest.js", "network.js", "js/network.js", "js/numbers.js"]) {
  vm.runInContext(read(name), context, { filename: name });
}
const get = (name) => vm.runInContext(name, context);

(async () => {
  const network = await get("Network").load(Uint8Array.from(Buffer.from(get("NETWORK"), "base64")), get("MANIFEST"));
  const real = get("realOf"), stored = get("storedOf");
  for (let frame = 0; frame < get("SAMPLE_FRAMES"); ++frame) {
    const arrays = network.sample(frame), results = network.run(arrays);
    arrays.forEach((array, k) => array.forEach((q) => {
      const tensor = network.inputs[k], back = stored(tensor, real(tensor, q));
      if (back !== q && !(Number.isNaN(back) && Number.isNaN(q))) {
        throw new Error(`${tensor.name}: ${q} becomes ${back}`);
      }
    }));
    network.outputs.forEach((tensor, k) => console.log(JSON.stringify([tensor.name, Array.from(results[k], String)])));
  }
  const times = network.time(network.sample(0), 1);
  if (times.length !== network.kernels.length || !times.every((time) => time > 0)) {
    throw new Error(`times: ${times}`);
  }
})();
