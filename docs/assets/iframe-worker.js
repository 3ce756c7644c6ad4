/* Browsers refuse web workers on pages opened from a file. The search of the site needs one, so here a worker is a
   hidden frame: scripts run in the frame, and messages go through the frame's window. */
(function () {
  if (location.protocol !== "file:") return;

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.deliver(data);
      inside.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => this.load(inside, next)), Promise.resolve());
      this.frame = frame;
      this.ready = this.load(inside, new URL(url, location.href).href);
    }

    load(inside, url) {
      return new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.appendChild(script);
      });
    }

    deliver(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
})();
