// Numbers, sizes and times in the reader's language and zone.

const NONE = "–";
const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 2 });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const minute = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const number = (value) => (isNumber(value) ? whole.format(value) : NONE);
export const compact = (value) => (isNumber(value) ? short.format(value) : NONE);
export const perSecond = (value) => (isNumber(value) ? `${whole.format(value)}/s` : NONE);

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < units.length - 1) [left, at] = [left / 1024, at + 1];
  return `${(left < 10 && at ? fine : whole).format(left)} ${units[at]}`;
}

/** 45 ms, 1.2 s, 3 min, 2 h 5 min, 4 d 3 h. */
export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 1) return `${whole.format(seconds * 1000)} ms`;
  if (seconds < 10) return `${fine.format(seconds)} s`;
  if (seconds < 120) return `${whole.format(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`;
}

/** Date and time; for a moment of today the time alone. */
export function moment(ms) {
  if (!isNumber(ms)) return NONE;
  const [found, today] = [new Date(ms), new Date()];
  const isToday = found.toDateString() === today.toDateString();
  return isToday ? clock.format(found) : `${day.format(found)}, ${clock.format(found)}`;
}

export const time = (ms) => (isNumber(ms) ? clock.format(new Date(ms)) : NONE);
export const hour = (ms) => (isNumber(ms) ? minute.format(new Date(ms)) : NONE);
export const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;
export const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
