// Fetches /status of its own server once a second and shows it. All texts go in as text, never as
// HTML, since peers choose their names.
"use strict";

const POLL_MS = 1000, TIMEOUT_MS = 5000, KEPT = 120;
const SVG = "http://www.w3.org/2000/svg";
const latency = [];
let before = null;

function el(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (kind) made.className = kind;
  return made;
}

function section(title, wide) {
  const made = el("section", null, wide ? "wide" : "");
  made.append(el("h2", title));
  return made;
}

function table(heads, rows) {
  const made = el("table"), head = el("tr"), scroll = el("div", null, "scroll");
  for (const each of heads) head.append(el("th", each));
  made.append(head);
  for (const row of rows) {
    const line = el("tr");
    row.forEach((cell, index) => {
      const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
      const made = el("td", text === null || text === undefined ? "–" : text, kind);
      made.dataset.head = heads[index];
      line.append(made);
    });
    made.append(line);
  }
  scroll.append(made);
  return scroll;
}

function facts(pairs) {
  const made = el("dl");
  for (const [name, value, kind] of pairs) {
    if (value === undefined) continue;
    made.append(el("dt", name), el("dd", value === null ? "–" : value, kind));
  }
  return made;
}

function lsn(text) {
  const [high, low] = String(text).split("/");
  return parseInt(high, 16) * 2 ** 32 + parseInt(low, 16);
}

function bytes(count) {
  if (count === null || count === undefined || isNaN(count)) return null;
  for (const [unit, power] of [["TB", 40], ["GB", 30], ["MB", 20], ["kB", 10]]) {
    if (Math.abs(count) >= 2 ** power) return (count / 2 ** power).toFixed(1) + " " + unit;
  }
  return count + " B";
}

function millis(seconds) {
  if (seconds === null || seconds === undefined) return null;
  return (seconds * 1000).toFixed(2) + " ms";
}

function lag(mine, newest) {
  return mine && newest ? bytes(Math.max(0, lsn(newest) - lsn(mine))) : null;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A bar for each fragment of the history: terms side by side, timelines one below the other.
function picture(history) {
  const timelines = [...new Set(history.map((each) => each.timeline))].sort((a, b) => a - b);
  const height = 24 * timelines.length + 8, step = 600 / history.length;
  const svg = shape("svg", { viewBox: `0 0 680 ${height}`, role: "img" });
  svg.append(shape("title", {}, "terms and timelines of the log"));
  for (const [row, timeline] of timelines.entries()) {
    svg.append(shape("text", { x: 0, y: 24 * row + 18, class: "soft" }, `timeline ${timeline}`));
  }
  history.forEach((each, index) => {
    const y = 24 * timelines.indexOf(each.timeline) + 4, x = 76 + index * step;
    const box = shape("rect", {
      x, y, width: Math.max(1, step - 2), height: 20, rx: 2, class: index % 2 ? "odd" : "bar",
    });
    const until = each.sealed ? ", sealed" : "";
    box.append(shape("title", {}, `term ${each.term} from ${each.start_lsn}${until}`));
    svg.append(box);
    if (step > 60) {
      svg.append(shape("text", { x: x + 4, y: y + 14, class: "on" }, `term ${each.term}`));
    }
  });
  return svg;
}

function sparkline(values) {
  const most = Math.max(...values, 1e-6), svg = shape("svg", { viewBox: "0 0 320 60" });
  const points = values.map((value, index) =>
    `${(320 * index) / Math.max(1, KEPT - 1)},${56 - (52 * value) / most}`);
  svg.append(shape("title", {}, "time of commits"));
  svg.append(shape("polyline", { points: points.join(" "), class: "line" }));
  svg.append(shape("text", { x: 2, y: 12, class: "soft" }, millis(most)));
  return svg;
}

function reasonsOf(reasons) {
  const made = section("What to do", true);
  made.append(table(["state", "what", "since", "remedy"], reasons.map((each) => [
    [each.state, each.state === "WARNING" ? "warning" : "bad"], [each.text, "text"], each.since,
    [each.remedy, "text"],
  ])));
  return made;
}

function membersOf(members, cluster) {
  const newest = cluster.commit_lsn;
  const made = section("Safekeepers", true);
  made.append(table(
    ["id", "address", "role", "state", "term", "flush_lsn", "lag", "disk free", "fsync", "damage", "archive"],
    members.map((each) => {
      const broken = !each.reachable || each.error;
      return [
        each.id, each.address, roleOf(each, cluster), [broken ? each.error || "down" : "ok", broken ? "bad text" : "ok"],
        each.term, each.flush_lsn, lag(each.flush_lsn, newest), bytes(each.free_bytes),
        millis(each.fsync_s), each.reachable ? damageOf(each) : null,
        each.archive ? each.archived_lsn : null,
      ];
    })));
  return made;
}

function damageOf(each) {
  if (each.damage) return [each.damage, "bad text"];
  if (each.differences) return [`segments that differ: ${each.differences}`, "warning text"];
  return each.repairs ? [`segments rewritten: ${each.repairs}`, "warning"] : ["none", "ok"];
}

// What a safekeeper is to the log: a member, one that joins or leaves, or none any more.
function roleOf(each, cluster) {
  const change = cluster.replacing || cluster.changing, has = (ids) => [].concat(ids).includes(each.id);
  if (change && has(change.joining)) return change.is_learning ? "learns" : "joins";
  if (change && has(change.leaving)) return "leaves";
  const ids = cluster.members.map((name) => parseInt(name, 10));
  return ids.includes(each.id) ? "member" : null;
}

function changeOf(cluster) {
  const change = cluster.replacing || cluster.changing, spares = cluster.spares || [];
  if (!change && !spares.length) return null;
  const made = section("Members"), ids = (of) => [].concat(of || []).join(", ") || "none";
  made.append(facts([
    ["members", cluster.members.map((name) => parseInt(name, 10)).join(", ")],
    ["ack quorum", cluster.ack_quorum],
    ["spares", spares.join(", ") || "none"],
    ...(change ? [
      ["change", change.is_learning ? "newcomers learn" : "both sets decide", "warning"],
      ["joining", ids(change.joining)], ["leaving", ids(change.leaving)],
      ["ack quorum then", change.ack_quorum],
      ["WAL to go", bytes(change.bytes_to_go)],
    ] : []),
  ]));
  return made;
}

function clientsOf(standbys, newest) {
  const made = section("Readers", true);
  made.append(table(["name", "from", "state", "flush_lsn", "lag", "slot"], standbys.map((each) => [
    each.application_name, each.client_addr, each.state, each.flush_lsn,
    lag(each.flush_lsn, newest), each.slot_name,
  ])));
  return made;
}

function archiveOf(archive, archived) {
  const made = section("Archive");
  made.append(facts([
    ["place", archive.url], ["archived to", archived], ["its tail to", archive.tail_lsn],
    ["segments due", archive.segments_due], ["failure", archive.failure || "none",
      archive.failure ? "bad" : "ok"],
  ]));
  return made;
}

function historyOf(history) {
  const made = section("Terms and timelines", true);
  const scroll = el("div", null, "scroll");
  scroll.append(picture(history));
  made.append(scroll);
  return made;
}

function eventsOf(events) {
  const made = section("Events", true);
  made.append(table(["time", "level", "text"], [...events].reverse().map((each) => [
    each.time.replace("T", " ").replace("Z", ""),
    [each.level, { WARNING: "warning", ERROR: "bad", CRITICAL: "bad" }[each.level] || ""],
    [each.text, "text"],
  ])));
  return made;
}

function primaryOf(primary) {
  const made = section("Primary");
  made.append(facts(primary ? [
    ["connected", primary.connected ? "yes" : "no", primary.connected ? "ok" : "bad"],
    ["streaming", primary.streaming ? "yes" : "no", primary.streaming ? "ok" : "bad"],
    ["sync_state", primary.sync_state], ["since", primary.since],
    ["commits that wait", primary.waiting, primary.waiting ? "bad" : "ok"],
    ["lowered", primary.lowered && primary.lowered.join(", ") || "nothing"],
    ["error", primary.error || undefined],
  ] : [["state", "not known"]]));
  return made;
}

// The three kinds of server: `up` knows all members, a proposer its members, a safekeeper itself.
function whole(status) {
  const { cluster, safekeepers } = status, newest = cluster.commit_lsn, parts = [];
  if (status.reasons.length) parts.push(reasonsOf(status.reasons));
  parts.push(membersOf(safekeepers, cluster));
  const change = changeOf(cluster);
  if (change) parts.push(change);
  parts.push(primaryOf(cluster.primary));
  const archiving = safekeepers.find((each) => each.archive);
  if (archiving) parts.push(archiveOf(archiving.archive, archiving.archived_lsn));
  const known = safekeepers.find((each) => each.history && each.history.length);
  if (known) parts.push(historyOf(known.history));
  const standbys = safekeepers.flatMap((each) => each.standbys || []);
  if (standbys.length) parts.push(clientsOf(standbys, newest));
  return parts;
}

function proposer(status) {
  const parts = [], own = section(`Proposer ${status.application_name}`);
  own.append(facts([
    ["log", status.cluster], ["phase", status.phase], ["ballot", status.ballot],
    ["received", status.received_lsn], ["committed", status.commit_lsn],
    ["not committed", lag(status.commit_lsn, status.received_lsn)],
    ["sync_state", status.sync_state],
  ]));
  parts.push(own);
  const commits = status.commits;
  if (before && commits.count > before.count) {
    latency.push((commits.sum_s - before.sum_s) / (commits.count - before.count));
    if (latency.length > KEPT) latency.shift();
  }
  before = commits;
  const times = section("Time of commits");
  times.append(facts([["sampled", commits.count],
    ["average", commits.count ? millis(commits.sum_s / commits.count) : null]]));
  if (latency.length) times.append(sparkline(latency));
  parts.push(times);
  const made = section("Safekeepers", true);
  made.append(table(["address", "state", "stage", "flush_lsn", "lag"], status.safekeepers.map(
    (each) => [
      each.address, [each.attached ? "attached" : "away", each.attached ? "ok" : "bad"], each.stage,
      each.flush_lsn, each.attached ? lag(each.flush_lsn, status.received_lsn) : null,
    ])));
  parts.push(made);
  return parts;
}

function safekeeper(status) {
  const parts = [];
  for (const [name, why] of Object.entries(status.broken)) {
    const made = section(`Log ${name}`, true);
    made.append(el("p", why, "bad"));
    parts.push(made);
  }
  for (const [name, log] of Object.entries(status.logs)) {
    const made = section(`Log ${name}`);
    made.append(facts([
      ["state", log.failure || "ok", log.failure ? "bad" : "ok"], ["term", log.term],
      ["flushed", log.flush_lsn], ["committed", log.commit_lsn], ["every member has", log.restart_lsn],
      ["kept", `${bytes(log.kept_bytes)} for ${log.kept_for || "consumers"}`],
      ["fsync", millis(log.fsync_s)], ["damage", ...damageOf(log)],
      ["proposer", log.proposer ? `${log.proposer.application_name} at ${log.proposer.address}` : "none",
        log.proposer ? "ok" : "bad"],
      ["slots", log.slots.map((each) => each.slot_name).join(", ") || "none"],
    ]));
    parts.push(made, primaryOf(log.primary));
    if (log.archive) parts.push(archiveOf(log.archive, log.archived_lsn));
    if (log.history && log.history.length) parts.push(historyOf(log.history));
    if (log.standbys.length) parts.push(clientsOf(log.standbys, log.commit_lsn));
  }
  return parts;
}

function other(status) {
  const made = section("State");
  made.append(facts(Object.entries(status).filter(([name]) => name !== "events")));
  return [made];
}

function say(text, kind, details) {
  const verdict = document.getElementById("verdict");
  if (verdict.textContent !== text) verdict.textContent = text;
  verdict.className = kind;
  document.getElementById("details").textContent = details;
}

// Without the user and the password that a link may have: fetch refuses an address with them.
function near(name) {
  return new URL(name, location.origin + location.pathname);
}

async function look() {
  try {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    const [status, ready] = await Promise.all([
      fetch(near("status"), { signal }).then((answer) => answer.json()),
      fetch(near("ready"), { signal }).then(async (answer) => [answer.ok, (await answer.text()).trim()]),
    ]);
    const parts = status.cluster && status.cluster.name ? whole(status)
      : status.logs ? safekeeper(status) : status.phase ? proposer(status) : other(status);
    if (status.events && status.events.length) parts.push(eventsOf(status.events));
    document.getElementById("main").replaceChildren(...parts);
    const state = status.verdict ? status.verdict.state : ready[0] ? "OK" : "CRITICAL";
    const kind = { OK: "ok", WARNING: "warning" }[state] || "bad";
    const text = status.verdict ? status.verdict.text : ready[1];
    say(text, kind, `version ${status.version}, ${new Date().toLocaleTimeString()}`);
    document.title = `${state} walkeeper`;
  } catch (error) {
    say("this daemon does not answer", "bad", `since ${new Date().toLocaleTimeString()}: ${error}`);
    document.title = "DOWN walkeeper";
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
  setTimeout(look, POLL_MS);
}

look();
