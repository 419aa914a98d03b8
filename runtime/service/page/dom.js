// Elements from values, and an update in place that keeps focus, selection and open details.
// All text becomes text nodes: a name with markup in it is shown, never read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; null, undefined and false among attributes and children are left out. */
export const h = (tag, attributes, ...children) =>
  filled(document.createElement(tag), attributes, children);

/** The same for SVG. */
export const s = (tag, attributes, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

const isGiven = (value) => value !== null && value !== undefined && value !== false;

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (isGiven(value)) element.setAttribute(name, value === true ? "" : value);
  }
  const shown = children.flat(Infinity).filter(isGiven);
  element.append(...shown.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/** Change `live` until it looks like `next`; children with the same `data-key` stay the same. */
export function update(live, next) {
  updateAttributes(live, next);
  const keyed = new Map();
  for (const child of live.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let at = live.firstChild;
  for (const child of [...next.childNodes]) {
    const key = child.dataset?.key;
    const found = key ? keyed.get(key) : at;
    if (!found || !isSame(found, child)) {
      live.insertBefore(child, at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else live.insertBefore(found, at);
    if (found.nodeType === Node.ELEMENT_NODE) update(found, child);
    else if (found.data !== child.data) found.data = child.data;
  }
  while (at) {
    const following = at.nextSibling;
    at.remove();
    at = following;
  }
}

const isSame = (one, other) =>
  one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;

function updateAttributes(live, next) {
  const kept = live.nodeName === "DETAILS" ? "open" : "";
  for (const { name } of [...live.attributes]) {
    if (name !== kept && !next.hasAttribute(name)) live.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (name !== kept && live.getAttribute(name) !== value) live.setAttribute(name, value);
  }
}
