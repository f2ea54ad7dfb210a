// Browsers start no worker from file:. The search then runs in a frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        setTimeout(() => (this.dispatchEvent(event), this.onmessage?.(event)));
      };
      this.ready = new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        inner.document.body.append(script);
      });
    }
    postMessage(data) {
      const { contentWindow: inner } = this.frame;
      const event = new inner.MessageEvent("message", { data: structuredClone(data) });
      this.ready.then(() => setTimeout(() => inner.dispatchEvent(event)));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
