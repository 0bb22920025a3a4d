// The chat: sends a message, follows the run's stream, shows what the agent does and whom it waits for.
// Everything that came from a person or a model enters the page as text, never as markup.

const config = JSON.parse(document.getElementById("chat-config").textContent);
const log = document.getElementById("log");
const empty = document.getElementById("empty");
const statusLine = document.getElementById("status");
const composer = document.getElementById("composer");
const box = document.getElementById("message");
const sendButton = document.getElementById("send");
const stopButton = document.getElementById("stop");

const RETRIES = 6;
const END_WORDS = {
  executed: "done", failed: "failed", rejected: "rejected", expired: "expired",
  cancelled: "stopped", interrupted: "outcome unknown",
};

let threadId = null;
let turn = null; // the run on screen that has not ended
let generation = 0; // a newer conversation makes older readers leave

// ---- small helpers -------------------------------------------------------------------------------------

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function say(text) {
  if (statusLine.textContent !== text) statusLine.textContent = text;
}

function show(node) {
  const nearEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 120;
  empty.hidden = true;
  log.append(node);
  if (nearEnd) log.scrollTop = log.scrollHeight;
}

function keepEndInView(change) {
  const nearEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 120;
  change();
  if (nearEnd) log.scrollTop = log.scrollHeight;
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function words(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function describe(input) {
  const parts = Object.entries(input ?? {}).map(([key, value]) => `${key}: ${words(value)}`);
  return parts.length ? ` (${parts.join(", ")})` : "";
}

// ---- requests ------------------------------------------------------------------------------------------

class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `The server answered ${status}.`);
    this.status = status;
    this.code = body?.code;
  }
}

async function request(path, { body, accept = "application/json" } = {}) {
  const headers = { Accept: accept };
  const options = { headers, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
    headers["X-CSRFToken"] = config.csrf;
  }
  const response = await fetch(config.base + path, options);
  if (!response.ok) {
    throw new Problem(response.status, await response.json().catch(() => null));
  }
  return response;
}

async function json(path, options) {
  return (await request(path, options)).json();
}

// ---- server-sent events ---------------------------------------------------------------------------------

async function* frames(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  let frame = { id: null, event: "", data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return; // a frame without its blank line is not a frame
      pending += value;
      // A lone CR at the end may be the first half of CRLF: wait for the rest.
      const held = pending.endsWith("\r") ? 1 : 0;
      const lines = pending.slice(0, pending.length - held).split(/\r\n|\n|\r/);
      pending = lines.pop() + pending.slice(pending.length - held);
      for (const line of lines) {
        if (line === "") {
          if (frame.data.length) {
            yield { id: frame.id, event: frame.event, data: JSON.parse(frame.data.join("\n")) };
          }
          frame = { id: null, event: "", data: [] };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue; // a comment keeps the connection open
        const field = colon < 0 ? line : line.slice(0, colon);
        const content = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "id") frame.id = Number(content);
        else if (field === "event") frame.event = content;
        else if (field === "data") frame.data.push(content);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// ---- one turn on the page -------------------------------------------------------------------------------

class Turn {
  constructor() {
    this.node = element("section", "turn");
    this.node.setAttribute("aria-label", "Answer");
    this.runId = null;
    this.last = 0;
    this.ended = false;
    this.text = null; // the paragraph that text goes to
    this.pieces = []; // [number, text node], so that a rewind can take text back
    this.lines = new Map(); // run and call id -> line of a tool
    this.cards = new Map();
  }

  add(node) {
    this.text = null;
    keepEndInView(() => this.node.append(node));
    return node;
  }

  write(number, delta) {
    keepEndInView(() => {
      if (this.text === null) {
        this.text = element("p", "text");
        this.node.append(this.text);
      }
      const piece = document.createTextNode(delta);
      this.text.append(piece);
      this.pieces.push([number, piece]);
    });
  }

  rewind(after) {
    for (const [number, piece] of this.pieces) if (number > after) piece.remove();
    this.pieces = this.pieces.filter(([number]) => number <= after);
  }

  toolLine(key, label) {
    const line = this.add(element("p", "tool", `${label} …`));
    line.dataset.label = label;
    this.lines.set(key, line);
  }

  toolResult(key, data) {
    const line = this.lines.get(key);
    if (!line) return;
    const because = data.error ? `: ${words(data.error)}` : "";
    line.textContent = `${line.dataset.label}: ${END_WORDS[data.status] ?? data.status}${because}`;
    line.dataset.status = data.status;
    this.settleCard(key, null);
    if (data.status === "interrupted") say("Nobody knows whether this took effect. A person must look.");
  }

  card(key, data) {
    this.cards.get(key)?.remove(); // a later round replaces the form
    const card = element("div", "card");
    const own = !data.approver;
    const people = (data.waitingFor ?? []).join(" or ");
    const whom = own ? "you" : people || data.approver.replace(/^(permission|group):/, "somebody with ");
    card.setAttribute("role", "group");
    card.setAttribute("aria-label", "Waiting for approval");
    card.append(element("h2", "", data.preview || `${data.toolName}${describe(data.input)}`));
    const list = element("dl");
    for (const [name, value] of Object.entries(data.input ?? {})) {
      list.append(element("dt", "", name), element("dd", "", words(value)));
    }
    const waits = element("p", "waits", `Waiting for ${whom}.`);
    card.append(list, waits);
    if (own) {
      const choices = element("div", "choices");
      const yes = element("button", "primary", "Approve");
      const no = element("button", "danger", "Reject");
      yes.type = no.type = "button";
      const decide = async (verdict) => {
        yes.disabled = no.disabled = true;
        try {
          const body = { runId: data.runId, toolCallId: data.id };
          if (verdict === "approve") body.digest = data.digest;
          await json(`tool-call/${verdict}`, { body });
        } catch (problem) {
          waits.textContent = problem.message;
          yes.disabled = no.disabled = false;
        }
      };
      yes.addEventListener("click", () => decide("approve"));
      no.addEventListener("click", () => decide("reject"));
      choices.append(yes, no);
      card.append(choices);
    }
    this.cards.set(key, this.add(card));
    say(`Waiting for ${whom}.`);
  }

  settleCard(key, text) {
    const card = this.cards.get(key);
    if (!card || card.dataset.settled) return;
    card.dataset.settled = "yes";
    card.querySelector(".choices")?.remove();
    card.querySelector(".waits").textContent = text ?? "No longer waiting.";
  }

  decision(key, data) {
    const by = data.decidedBy ? ` by ${words(data.decidedBy)}` : "";
    const because = data.reason ? `: ${data.reason}` : ".";
    this.settleCard(key, `${data.status[0].toUpperCase()}${data.status.slice(1)}${by}${because}`);
    say("");
  }

  end(text, problem = false) {
    this.ended = true;
    for (const key of this.cards.keys()) this.settleCard(key, null);
    if (text) this.add(element("p", problem ? "end problem" : "end", text));
  }

  apply({ id, event, data }) {
    if (id !== null) {
      if (id <= this.last) return;
      this.last = id;
    }
    const key = `${data.runId ?? this.runId}:${data.id}`;
    switch (event) {
      case "meta":
        this.runId = data.runId;
        threadId = data.threadId;
        break;
      case "":
        this.write(id, data.delta ?? "");
        break;
      case "step":
        this.text = null; // what is said next is another step's, perhaps another agent's
        break;
      case "rewind":
        this.rewind(data.after);
        break;
      case "tool-call":
        this.toolLine(key, (data.kind === "agent" ? `Asks ${data.toolName}` : data.toolName) + describe(data.input));
        break;
      case "approval":
        if (data.runId) this.card(key, data);
        break;
      case "decision":
        this.decision(key, data);
        break;
      case "tool-result":
        this.toolResult(key, data);
        break;
      case "cancelled":
        this.end("Stopped.");
        break;
      case "error":
        this.end(data.message || "Something went wrong.", true);
        break;
      case "done":
        this.end("");
        break;
      // What a reader does not know it ignores.
    }
  }
}

// ---- following a run ------------------------------------------------------------------------------------

function busy(on) {
  sendButton.hidden = on;
  stopButton.hidden = !on;
  stopButton.disabled = false;
  log.setAttribute("aria-busy", String(on));
}

async function follow(current, response) {
  const mine = generation;
  let failures = 0;
  busy(true);
  while (!current.ended && mine === generation) {
    try {
      response ??= await request(`chat/${current.runId}/stream?after=${current.last}`, { accept: "text/event-stream" });
      for await (const frame of frames(response)) {
        if (mine !== generation) return;
        failures = 0;
        current.apply(frame);
        if (current.ended) break;
      }
    } catch (problem) {
      if (problem instanceof Problem && problem.status < 500) {
        current.end(problem.message, true);
        break;
      }
    }
    response = null;
    if (current.ended || mine !== generation) break;
    if (++failures > RETRIES) {
      current.end("The connection is lost. Reload the page to look again: the work goes on without it.", true);
      break;
    }
    say("Connecting again …");
    await pause(Math.min(400 * failures, 3000));
  }
  if (mine !== generation) return;
  turn = null;
  busy(false);
  say("");
}

async function send(message) {
  const bubble = element("div", "mine", message);
  show(bubble);
  log.scrollTop = log.scrollHeight;
  busy(true);
  stopButton.disabled = true;
  const body = { message, agent: config.agent };
  if (threadId) body.threadId = threadId;
  let response;
  try {
    response = await request("chat", { body, accept: "text/event-stream" });
  } catch (problem) {
    bubble.remove();
    box.value = message;
    busy(false);
    say(problem.message);
    return;
  }
  turn = new Turn();
  turn.runId = response.headers.get("X-Agent-Run-Id");
  threadId = response.headers.get("X-Agent-Thread-Id") ?? threadId;
  show(turn.node);
  say("");
  await follow(turn, response);
  box.focus();
}

// ---- what was there before ------------------------------------------------------------------------------

function showEarlier(messages, activeRunId) {
  for (const message of messages) {
    if (message.role === "user") {
      show(element("div", "mine", message.content));
    } else if (message.runId !== activeRunId) {
      const past = new Turn();
      if (message.content) past.write(0, message.content);
      const results = new Map((message.toolResults ?? []).map((result) => [result.id, result]));
      for (const call of message.toolCalls ?? []) {
        past.toolLine(call.id, call.name + describe(call.input));
        const result = results.get(call.id);
        if (result) past.toolResult(call.id, result);
      }
      if (past.node.childNodes.length) show(past.node);
    }
  }
}

async function restore() {
  const mine = generation;
  try {
    const { results } = await json("threads");
    if (mine !== generation || !results.length) return;
    const thread = await json(`threads/${results[0].threadId}`);
    if (mine !== generation) return;
    threadId = thread.threadId;
    showEarlier(thread.messages ?? [], thread.activeRunId);
    log.scrollTop = log.scrollHeight;
    if (thread.activeRunId) {
      turn = new Turn();
      turn.runId = thread.activeRunId;
      show(turn.node);
      await follow(turn, null);
    }
  } catch (problem) {
    say(problem.message);
  }
}

// ---- the form -------------------------------------------------------------------------------------------

function submit() {
  const message = box.value.trim();
  if (!message || turn || sendButton.hidden) return;
  box.value = "";
  send(message);
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});

box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});

stopButton.addEventListener("click", async () => {
  if (!turn?.runId) return;
  stopButton.disabled = true;
  say("Stopping …");
  try {
    await json(`chat/${turn.runId}/cancel`, { body: {} });
  } catch (problem) {
    stopButton.disabled = false;
    say(problem.message);
  }
});

for (const suggestion of document.querySelectorAll(".suggestion")) {
  suggestion.addEventListener("click", () => {
    box.value = suggestion.textContent;
    box.focus();
  });
}

document.getElementById("fresh").addEventListener("click", () => {
  generation += 1;
  turn = null;
  threadId = null;
  for (const node of [...log.children]) if (node !== empty) node.remove();
  empty.hidden = false;
  busy(false);
  say("");
  box.focus();
});

restore();
