"use strict";
/* What the scripts of all pages use. */

function element(name, text, ...classes) {
  const made = document.createElement(name);
  made.textContent = text;
  made.classList.add(...classes);
  return made;
}
