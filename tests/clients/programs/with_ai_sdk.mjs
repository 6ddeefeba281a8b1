// Vercel's AI SDK: `DIALECT BASE_URL KEY TASK` -> what it saw, as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.CLIENT_MODULES + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateText, streamText, tool, stepCountIs } = await load("ai");
const { z } = await load("zod");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");

const [dialect, baseUrl, apiKey, task] = process.argv.slice(2);
const baseURL = `${baseUrl}/v1`;
const models = {
  chat: () => createOpenAICompatible({ name: "studio", baseURL, apiKey })("policy"),
  responses: () => createOpenAI({ baseURL, apiKey }).responses("policy"),
  messages: () => createAnthropic({ baseURL, apiKey })("policy"),
};
const heard = [];
const tools = {
  note: tool({
    description: "Write something down.",
    inputSchema: z.object({ text: z.string() }),
    execute: async ({ text }) => (heard.push(["note", { text }]), `noted: ${text}`),
  }),
  add: tool({
    description: "Add two numbers.",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async ({ a, b }) => (heard.push(["add", { a, b }]), a + b),
  }),
};
const asked = { model: models[dialect](), tools, prompt: task, stopWhen: stepCountIs(6), maxRetries: 0 };
const answer = dialect === "messages" ? (await generateText(asked)).text : await streamText(asked).text;
console.log(JSON.stringify({ calls: heard, answer }));
