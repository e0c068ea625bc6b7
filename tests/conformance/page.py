"""page.py -- the page of a run in a real browser: a run of four ranks is followed live, one of them is killed, markup in
its name stays text, the report in one file needs nothing else, and the console says nothing. Screenshots are left in
$PAGE_SHOTS (light and dark, wide and phone), for a person to look at. With PAGE_PICTURES=docs/img it makes the pictures
of the guide instead."""
import json, os, re, shutil, signal, subprocess, sys, time

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("no playwright in this Python (pip install playwright)")
    sys.exit(77)
browser_path = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
if not browser_path:
    print("no chromium here (apt-get install chromium)")
    sys.exit(77)

LINESHAFT = os.environ["LINESHAFT"]
SHOTS = os.environ.get("PAGE_SHOTS", ".")
NAME = "<img src=x onerror=alert(1)> & tales"
RUN = """
name: "%s"
model: {family: gpt2, layers: 2, width: 64, heads: 4, context: 64}
data: {text: [builtin:stories], validation: 5%%}
batch: {sequences: 8, leaf: 2}
train: {steps: %d, lr: 3e-3, schedule: cosine, warmup: 40, clip: 1.0}
checkpoint: {every: 60, keep: 3}
eval: {every: 40, sequences: 8, sample: "Once upon", sample_tokens: 60}
"""
STEPS = int(os.environ.get("PAGE_STEPS", "600"))


def fail(why):
    print(why)
    sys.exit(1)


def check(condition, why):
    if not condition:
        fail(why)


class Window:
    """A window of the browser that remembers what went wrong in it, and whom it asked."""

    def __init__(self, browser, scheme, width, height, scale=1, **more):
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}, device_scale_factor=scale, **more)
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def step(self):
        found = re.search(r"step\s+([\d,]+)", self.text("#facts"))
        return int(found.group(1).replace(",", "")) if found else 0

    def until(self, what, why, seconds=60):
        end = time.time() + seconds
        while not what():
            check(time.time() < end, "%s: %s" % (why, self.text("body")[:600]))
            time.sleep(0.05)

    def shot(self, name, full=True):
        self.page.wait_for_timeout(500)
        self.page.screenshot(path=os.path.join(SHOTS, name + ".png"), full_page=full)

    def close(self, name):
        check(not self.said, "%s: the console says %s" % (name, self.said))
        self.context.close()


def train(folder, *more, name=NAME):
    with open("run.yaml", "w") as f:
        f.write(RUN % (name, STEPS))
    return subprocess.Popen([LINESHAFT, "train", "run.yaml", "--set", "out=" + folder, *more], stdout=subprocess.PIPE, stderr=open(folder.replace("/", "-") + ".err", "w"), text=True)


def url_of(process):
    for line in process.stdout:
        found = re.match(r"(?:page\s+)?(http://\S+)", line)
        if found:
            return found.group(1)
    fail("no address was printed")


def pid_of(folder, rank):
    lines = [json.loads(line) for line in open(folder + "/events.jsonl")]
    return [e["pid"] for e in lines if e["event"] == "rank" and e["rank"] == rank][-1]


def follow(browser, url):
    """A live run of four ranks: the numbers move, the token leaves the address, a rank that is killed becomes an incident."""
    w = Window(browser, "dark", 1440, 900)
    began = time.time()
    w.page.goto(url)
    w.until(lambda: w.step() > 5, "no steps")
    seen = w.step()
    w.until(lambda: w.step() > seen, "the page stands still")
    check("token" not in w.page.url, "the token stays in the address: " + w.page.url)
    check(w.text("#name") == NAME, "the name is %r" % w.text("#name"))
    check(w.page.locator("img").count() == 0, "markup of a name became an element")
    check(w.text("#state") == "running", "the state is " + w.text("#state"))
    w.until(lambda: w.step() > 130, "too slow")
    os.kill(pid_of("runs/four", 2), signal.SIGKILL)
    w.until(lambda: "lost" in w.text("#panel-timeline"), "the killed rank is no incident")
    w.shot("live-dark", full=False)
    check(not w.said, "the console says %s" % w.said)
    w.page.reload()
    w.until(lambda: w.step() > 130, "the cookie does not do for a reload")
    host = re.match(r"http://[^/]+", url).group(0)
    check(all(a.startswith(host) for a in w.asked), "asked elsewhere: %s" % [a for a in w.asked if not a.startswith(host)])
    print("a live run of four ranks: followed for %.0f s, a killed rank is an incident" % (time.time() - began))
    return w


def look(browser, url):
    """The finished run, in both themes and widths; charts are drawn, zoom and keys work."""
    for name, scheme, width, height, more in (("light", "light", 1440, 900, {}), ("dark", "dark", 1440, 900, {}), ("wide", "light", 2200, 1200, {}),
                                              ("phone", "light", 390, 844, {"has_touch": True, "is_mobile": True}), ("phone-dark", "dark", 390, 844, {"has_touch": True, "is_mobile": True})):
        w = Window(browser, scheme, width, height, scale=2 if "phone" in name else 1, **more)
        w.page.goto(url)
        w.until(lambda: w.text("#state") == "finished", "not finished")
        check(w.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name + ": wider than the window")
        check(w.page.evaluate("document.documentElement.dataset.theme") == scheme, name + ": another theme")
        w.shot(name)
        if name == "light":
            keys(w)
        w.close(name)
    print("light, dark, wide, phone: no console errors, nothing wider than the window")


def keys(w):
    box = w.page.locator("#panel-loss .chart").bounding_box()
    w.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    w.until(lambda: "step" in w.text("#panel-lr .legend"), "pointing at one curve shows no value of another")
    w.page.mouse.down()
    w.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=4)
    w.page.mouse.up()
    w.until(lambda: w.page.locator("#whole").is_visible(), "dragging does not zoom")
    w.shot("zoomed", full=False)
    w.page.keyboard.press("r")
    w.until(lambda: not w.page.locator("#whole").is_visible(), "r does not show the whole run")
    for key in "alt[]?":
        w.page.keyboard.press(key)
    check(w.page.locator("#keys").is_visible(), "? shows no keys")
    w.shot("keys", full=False)
    w.page.keyboard.press("Escape")
    w.page.locator("#panel-loss .chart").focus()
    w.page.keyboard.press("ArrowLeft")
    check("after" in w.text("#panel-loss .legend"), "arrows read no value: " + w.text("#panel-loss .legend"))


def compare(browser, url):
    w = Window(browser, "light", 1440, 900)
    w.page.goto(url)
    w.until(lambda: w.text("#state") == "finished", "not finished")
    w.page.select_option("#with", "base")
    w.until(lambda: "differ from base" in w.text("#panel-settings"), "no differences are shown")
    check("train.lr" in w.text("#panel-settings tr.differs >> nth=0") + w.text("#panel-settings"), "the learning rate is not among them")
    w.shot("compared")
    w.close("compared")
    print("compared with another run: its curves and the settings that differ")


def report(browser):
    """One file, in a browser without a network."""
    with open("report.html", "wb") as f:
        subprocess.run([LINESHAFT, "page", "runs/four", "--html", "--with", "runs/base"], stdout=f, check=True)
    w = Window(browser, "light", 1440, 900, offline=True)
    path = "file://" + os.path.abspath("report.html")
    w.page.goto(path)
    w.until(lambda: w.text("#state") == "finished", "the report is empty")
    check(w.text("#name") == NAME and w.page.locator("img").count() == 0, "markup of a name in a report")
    check(w.asked == [path], "a report asks for %s" % w.asked)
    w.shot("report")
    w.close("report")
    print("a report of %d KiB in one file: no network, no console errors" % (os.path.getsize("report.html") // 1024))


def small(path):
    """A palette is enough for a page; the file gets a third."""
    try:
        from PIL import Image
    except ImportError:
        return
    Image.open(path).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


def pictures(browser, folder):
    """For docs/guide/observe.md: a run of four ranks that lost one, as far as a window shows it."""
    live = train("runs/tales", "-n", "4", "--page", name="tales")
    url_of(live)
    while not os.path.exists("runs/tales/events.jsonl") or '"step":300,' not in open("runs/tales/events.jsonl").read():
        time.sleep(0.05)
    os.kill(pid_of("runs/tales", 2), signal.SIGKILL)
    live.communicate()
    server = subprocess.Popen([LINESHAFT, "page", "runs/tales"], stdout=subprocess.PIPE, text=True)
    url = url_of(server)
    for name, scheme, width, height, down in (("page-light", "light", 1280, 800, 0), ("page-dark", "dark", 1280, 800, 770), ("page-phone", "light", 390, 700, 0)):
        w = Window(browser, scheme, width, height)
        w.page.goto(url)
        w.until(lambda: w.text("#state") == "finished", "not finished")
        w.page.evaluate("scrollTo(0, %d)" % down)
        path = os.path.join(folder, name)
        w.page.wait_for_timeout(500)
        w.page.screenshot(path=path + ".png")
        small(path + ".png")
        w.close(name)
    server.terminate()


def main():
    os.makedirs(SHOTS, exist_ok=True)
    if os.environ.get("PAGE_PICTURES"):
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            pictures(browser, os.environ["PAGE_PICTURES"])
        return
    base = train("runs/base", "--set", "train.lr=1e-3", "--set", "train.steps=%d" % (STEPS // 2), "--json")
    base.communicate()
    check(base.returncode == 0, "the first run failed")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        live = train("runs/four", "-n", "4", "--page")
        w = follow(browser, url_of(live))
        live.communicate()
        check(live.returncode == 0, "the run failed: " + open("runs-four.err").read())
        w.until(lambda: w.text("#state") == "finished", "the end of the run is not shown")
        # The server is gone with the run: a browser says so in its console, the page in its head.
        w.until(lambda: "ended" in w.text("#link"), "the end of the server is not said")
        w.context.close()
        server = subprocess.Popen([LINESHAFT, "page", "runs/four"], stdout=subprocess.PIPE, text=True)
        try:
            url = url_of(server)
            look(browser, url)
            compare(browser, url)
        finally:
            server.terminate()
            check(server.wait() == 0, "the server ended otherwise")
        report(browser)
        browser.close()


main()
