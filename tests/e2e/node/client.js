// A JavaScript client of the gRPC endpoint. Each check prints one line of JSON: its name, and what went wrong.
"use strict";

const assert = require("node:assert/strict");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, schema] = process.argv.slice(2);
const NAMES = ["grpc_service.proto", "health.proto"].map((name) => path.join(schema, name));
const loaded = grpc.loadPackageDefinition(
  loader.loadSync(NAMES, { includeDirs: [schema], keepCase: true, longs: String, enums: String, defaults: true }),
);
const credentials = grpc.credentials.createInsecure();
const unlimited = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };
const client = new loaded.inference.GRPCInferenceService(address, credentials, unlimited);
const health = new loaded.grpc.health.v1.Health(address, credentials);

// One unary call: the response, or the error thrown.
function call(verb, request, options = {}, from = client) {
  const deadline = Date.now() + (options.deadline_ms ?? 20000);
  return new Promise((resolve, reject) => {
    const started = from[verb](request, new grpc.Metadata(), { deadline }, (error, response) =>
      error ? reject(error) : resolve(response),
    );
    options.started?.(started);
  });
}

function raw(values) {
  return Buffer.from(Float32Array.from(values).buffer);
}

function floats(buffer) {
  return Array.from({ length: buffer.length / 4 }, (_, n) => buffer.readFloatLE(n * 4));
}

function request(model, name, shape, buffer, more = {}) {
  const inputs = [{ name, datatype: "FP32", shape }];
  return { model_name: model, inputs, raw_input_contents: [buffer], ...more };
}

const PAIR = request("patient", "x", [1, 2], raw([1, 2]));

async function refused(promise, code, words) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code, `${error.code}: ${error.details}`);
    assert.match(error.details, words);
    return true;
  });
}

const checks = {
  async "health of the server and of a model"() {
    assert.deepEqual(await call("ServerLive", {}), { live: true });
    assert.deepEqual(await call("ServerReady", {}), { ready: true });
    assert.deepEqual(await call("ModelReady", { name: "identity" }), { ready: true });
    assert.deepEqual(await call("ModelReady", { name: "nobody" }), { ready: false });
  },

  async "the health checking protocol"() {
    assert.equal((await call("Check", {}, {}, health)).status, "SERVING");
  },

  async "metadata"() {
    assert.equal((await call("ServerMetadata", {})).name, "triton");
    const model = await call("ModelMetadata", { name: "mnist" });
    assert.equal(model.platform, "onnxruntime_onnx");
    assert.deepEqual(model.inputs[0], { name: "image", datatype: "FP32", shape: ["-1", "1", "8", "8"] });
  },

  async "configuration"() {
    const { config } = await call("ModelConfig", { name: "add_sub" });
    assert.equal(config.max_batch_size, 8);
    assert.deepEqual(config.input.map((input) => [input.name, input.data_type]), [
      ["INPUT0", "TYPE_FP32"],
      ["INPUT1", "TYPE_FP32"],
    ]);
  },

  async "raw tensors, an id and a requested output"() {
    const values = Array.from({ length: 16 }, (_, n) => n + 0.5);
    const answer = await call("ModelInfer", {
      model_name: "add_sub",
      id: "nodé 1",
      inputs: ["INPUT0", "INPUT1"].map((name) => ({ name, datatype: "FP32", shape: [1, 16] })),
      outputs: [{ name: "OUTPUT0" }],
      raw_input_contents: [raw(values), raw(values)],
    });
    assert.deepEqual([answer.id, answer.model_name, answer.model_version], ["nodé 1", "add_sub", "1"]);
    assert.equal(answer.outputs.length, 1);
    assert.deepEqual(answer.outputs[0].shape, ["1", "16"]);
    assert.deepEqual(floats(answer.raw_output_contents[0]), values.map((value) => value * 2));
  },

  async "typed tensors"() {
    const values = Array.from({ length: 16 }, (_, n) => n);
    const input = { name: "INPUT0", datatype: "FP32", shape: [1, 16], contents: { fp32_contents: values } };
    const answer = await call("ModelInfer", { model_name: "identity", inputs: [input] });
    assert.deepEqual(floats(answer.raw_output_contents[0]), values);
  },

  async "600 KB both ways"() {
    const buffer = Buffer.from(Array.from({ length: 600000 }, (_, n) => (n * 31) % 63)); // no byte makes a NaN
    const answer = await call("ModelInfer", request("large", "x", [1, 150000], buffer));
    assert.ok(answer.raw_output_contents[0].equals(buffer));
  },

  async "8 MB both ways, several at once"() {
    const buffers = [1, 2, 3].map((seed) => Buffer.alloc(8000000, seed));
    const answers = await Promise.all(
      buffers.map((buffer) => call("ModelInfer", request("large", "x", [1, 2000000], buffer))),
    );
    answers.forEach((answer, n) => assert.ok(answer.raw_output_contents[0].equals(buffers[n])));
  },

  async "a large answer to a small question"() {
    const n = Buffer.alloc(8);
    n.writeBigInt64LE(1000000n);
    const inputs = [{ name: "n", datatype: "INT64", shape: [1] }];
    const answer = await call("ModelInfer", { model_name: "counting", inputs, raw_input_contents: [n] });
    const [data] = answer.raw_output_contents;
    assert.equal(data.length, 8000000);
    assert.equal(data.readBigInt64LE(8 * 999999), 999999n);
  },

  async "errors have a status and a message"() {
    const { NOT_FOUND, INVALID_ARGUMENT, UNIMPLEMENTED } = grpc.status;
    const row = raw(Array(16).fill(1));
    await refused(call("ModelInfer", request("nobody", "x", [1], row)), NOT_FOUND, /'nobody' is not found/);
    const odd = request("identity", "INPUT0", [1, 15], row);
    await refused(call("ModelInfer", odd), INVALID_ARGUMENT, /Expected \[-1,16\], got \[1,15\]/);
    await refused(call("ModelInfer", request("naïf €", "x", [1], row)), NOT_FOUND, /'naïf €' is not found/);
    const Other = grpc.makeGenericClientConstructor(
      { Nothing: { path: "/no.Service/Nothing", requestSerialize: (b) => b, responseDeserialize: (b) => b } },
      "Other",
    );
    const other = new Other(address, credentials);
    await refused(call("Nothing", Buffer.alloc(0), {}, other), UNIMPLEMENTED, /./);
    other.close();
  },

  async "a deadline ends the call and not the server"() {
    await refused(call("ModelInfer", PAIR, { deadline_ms: 100 }), grpc.status.DEADLINE_EXCEEDED, /./);
    const answer = await call("ModelInfer", PAIR);
    assert.deepEqual(floats(answer.raw_output_contents[0]), [2, 4]);
  },

  async "a cancelled call ends at once"() {
    const began = Date.now();
    const cancelled = call("ModelInfer", PAIR, { started: (it) => setTimeout(() => it.cancel(), 50) });
    await refused(cancelled, grpc.status.CANCELLED, /./);
    assert.ok(Date.now() - began < 700);
    assert.deepEqual(await call("ServerLive", {}), { live: true });
  },

  async "many calls at once on one channel"() {
    const rows = Array.from({ length: 500 }, (_, n) => Array.from({ length: 16 }, (_, k) => n * 16 + k));
    const answers = await Promise.all(
      rows.map((row) => call("ModelInfer", request("identity", "INPUT0", [1, 16], raw(row)))),
    );
    answers.forEach((answer, n) => assert.deepEqual(floats(answer.raw_output_contents[0]), rows[n]));
  },

  async "compressed messages"() {
    const options = { "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip, ...unlimited };
    const squeezing = new loaded.inference.GRPCInferenceService(address, credentials, options);
    const buffer = Buffer.alloc(600000, 7);
    const answer = await call("ModelInfer", request("large", "x", [1, 150000], buffer), {}, squeezing);
    squeezing.close();
    assert.ok(answer.raw_output_contents[0].equals(buffer));
  },
};

async function main() {
  for (const [name, check] of Object.entries(checks)) {
    let problem = null;
    try {
      await check();
    } catch (error) {
      problem = String(error.stack ?? error);
    }
    console.log(JSON.stringify({ name, problem }));
  }
  client.close();
  health.close();
}

main();
