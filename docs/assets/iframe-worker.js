// Browsers start no workers from files. Run the worker of the search in a frame, if the pages are read from disk.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve));
    this.receive = (event) => {
      if (event.source !== this.frame.contentWindow) return;
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      this.onmessage?.(message);
    };
    addEventListener("message", this.receive);
    const page = this.frame.contentDocument;
    page.open();
    page.write(`<script>
      postMessage = (data) => parent.postMessage(data, "*");
      importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve, reject) => {
        const script = document.createElement("script");
        Object.assign(script, { src: url, onload: resolve, onerror: reject });
        document.head.append(script);
      })), Promise.resolve());
    </script><script src="${url}"></script>`);
    page.close();
  }

  postMessage(data) {
    this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    removeEventListener("message", this.receive);
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
