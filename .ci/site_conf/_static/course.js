// A head viewer takes the page's colours when the pointer enters it. Let it look again
// whenever the page turns dark or light.
new MutationObserver(() => {
  for (const viewer of document.querySelectorAll("[data-lm-suppress-shortcuts]")) {
    viewer.dispatchEvent(new Event("pointerenter"));
  }
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });
