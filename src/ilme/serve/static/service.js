// What every part of the page uses: elements, the service's answers, the line that says how things stand.
export const $ = (id) => document.getElementById(id);

export function say(text, error = false) {
  $("state").textContent = text;
  $("state").classList.toggle("error", error);
}

// The JSON of an answer; an Error with the service's own words if it refuses.
export async function ask(path, request = {}) {
  const key = $("key").value, headers = { ...request.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...request, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The service cannot be reached.");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body) return body;
  const refused = new Error(body?.error?.message ?? `The service answered ${answer.status}.`);
  refused.status = answer.status;
  throw refused;
}
