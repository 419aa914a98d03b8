// Requests to the service that the page came from. The token stays in this tab.

const KEY = "sluice-token";
const LIMIT_MS = { GET: 5_000, POST: 90_000 };
const UNKNOWN = "It may have been carried out: look at the job before you repeat it.";

/** `kind`: "login" (a token is needed), "gone" (unknown job), "refused", or "lost" (no answer). */
export class ApiError extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const saveToken = (token) => sessionStorage.setItem(KEY, token);
export const dropToken = () => sessionStorage.removeItem(KEY);

export const get = (path) => request("GET", path);
export const post = (path, body) => request("POST", path, body);
export const pathOf = (uid, ...rest) => ["v1/jobs", encodeURIComponent(uid), ...rest].join("/");

async function request(method, path, body) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  let text;
  try {
    const signal = AbortSignal.timeout(LIMIT_MS[method]);
    answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
    text = await answer.text();
  } catch {
    const known = "The service does not answer.";
    throw new ApiError("lost", method === "GET" ? known : `${known} ${UNKNOWN}`);
  }
  if (answer.ok) return parsed(text);
  const reason = reasonOf(text) ?? `The service answered ${answer.status}.`;
  if (answer.status === 401) throw new ApiError("login", reason);
  if (answer.status === 404) throw new ApiError("gone", reason);
  throw new ApiError(answer.status >= 500 ? "lost" : "refused", reason);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError("lost", "The service's answer is not complete.");
  }
}

/** Errors are `{"error": text}` or `{"error": {"what", "remedy"}}`. */
function reasonOf(text) {
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : `${error.what}. ${error.remedy}`;
  } catch {
    return null;
  }
}
