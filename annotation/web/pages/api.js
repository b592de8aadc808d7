// Talking to the server: JSON over /api/v1 with the session's cookie, and the session's CSRF token on whatever changes something.
// A failure is either `Refused`, with the problem that the server reported, or `Unreachable`; nothing else is thrown.

const BASE = "/api/v1";
const TIMEOUT_MS = 30_000;
let csrf_token = null;

export class Refused extends Error {
  constructor(status, problem, retry_after_s) {
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;
    this.problem = problem;
    this.retry_after_s = retry_after_s;
  }
}

export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached.");
  }
}

export function set_csrf(token) {
  csrf_token = token;
}

export function address(path) {
  return BASE + path;
}

/** The answer's JSON (null for an empty one). */
export async function call(method, path, body = undefined, { keepalive = false, timeout_ms = TIMEOUT_MS } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && csrf_token) headers["X-CSRF-Token"] = csrf_token;
  let response;
  let text;
  try {
    response = await fetch(address(path), {
      method, headers, keepalive, credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(timeout_ms),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    text = await response.text();
  } catch {
    throw new Unreachable();
  }
  const value = read(text);
  if (response.ok) return value;
  const wait_s = Number(response.headers.get("Retry-After"));
  throw new Refused(response.status, value ?? {}, Number.isFinite(wait_s) ? wait_s : 0);
}

function read(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export const get = (path) => call("GET", path);
/** `options` as of `call`. */
export const post = (path, body = {}, options = {}) => call("POST", path, body, options);
export const put = (path, body, options = {}) => call("PUT", path, body, options);
export const patch = (path, body) => call("PATCH", path, body);
export const remove = (path) => call("DELETE", path);
export const part = encodeURIComponent;
