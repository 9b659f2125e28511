// Compiles WGSL with Tint, the compiler of Chromium, through Dawn without a device.
//
//   node check-wgsl.mjs MANIFEST
//
// MANIFEST is a JSON array of { name, file, entry, constants }. Each shader is compiled with WebGPU's
// default limits and made a compute pipeline with its constants. Prints a JSON array of
// { name, errors }, and what was used.
import { readFileSync } from 'node:fs';
import { create, globals } from 'webgpu';

Object.assign(globalThis, globals);
const gpu = create(['backend=null']);
const adapter = await gpu.requestAdapter();
if (!adapter) throw new Error('Dawn offers no null adapter');
const requiredFeatures = ['subgroups', 'shader-f16'].filter((f) => adapter.features.has(f));
const device = await adapter.requestDevice({ requiredFeatures });
device.lost.then(({ reason, message }) => {
  if (reason !== 'destroyed') {
    console.error(`device lost: ${message}`);
    process.exit(1);
  }
});

const modules = new Map();

async function compile(file) {
  const code = readFileSync(file, 'utf8');
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const fault = await device.popErrorScope();
  const errors = messages
    .filter((m) => m.type === 'error')
    .map((m) => ({ line: m.lineNum, message: m.message }));
  if (fault && errors.length === 0) errors.push({ line: 0, message: fault.message });
  return { module, errors };
}

const results = [];
for (const { name, file, entry, constants } of JSON.parse(readFileSync(process.argv[2], 'utf8'))) {
  if (!modules.has(file)) modules.set(file, await compile(file));
  const { module, errors } = modules.get(file);
  const found = [...errors];
  if (errors.length === 0) {
    try {
      await device.createComputePipelineAsync({
        layout: 'auto',
        compute: { module, entryPoint: entry, constants },
      });
    } catch (error) {
      found.push({ line: 0, message: error.message });
    }
  }
  results.push({ name, errors: found });
}
process.stdout.write(JSON.stringify({ node: process.version, features: requiredFeatures, results }));
// Dawn keeps the process alive.
process.stdout.write('\n', () => process.exit(0));
