// Uses Anthropic's TypeScript client: a loop of tools, whole and streamed. Usage: ... FOLDER URL
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/`);
const Anthropic = require("@anthropic-ai/sdk").default;
const client = new Anthropic({ baseURL: process.argv[3], apiKey: "none", maxRetries: 0 });
const tools = [{
  name: "get_weather",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}];
const options = { model: "specgate-demo", max_tokens: 64, tools };
const messages = [{ role: "user", content: "How is the weather" }];
const cities = [];
let answer;
for (;;) {
  answer = await client.messages.stream({ ...options, messages }).finalMessage();
  if (answer.stop_reason !== "tool_use") break;
  const calls = answer.content.filter((block) => block.type === "tool_use");
  cities.push(...calls.map((call) => call.input.city));
  const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "rain" }));
  messages.push({ role: "assistant", content: answer.content }, { role: "user", content: results });
}
const whole = await client.messages.create({ ...options, messages });
console.log(JSON.stringify({
  cities,
  kinds: answer.content.map((block) => block.type),
  same: JSON.stringify(whole.content) === JSON.stringify(answer.content),
}));
