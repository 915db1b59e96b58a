"""The page of the HTTP front, in a real browser where there is one."""

import shutil

import httpx2
import pytest

from slipstream.client import SamplingParams
from support.services.http_front import fronted

SAMPLED = SamplingParams(temperature=1.0, seed=7)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCRIPTS = [f"/page/{name}.js" for name in ("app", "answer", "stream", "tree")]


@pytest.fixture(scope="module")
def page_url(router):
    with fronted(router.address, page=True) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, page_url):
    """A page that is ready to chat; nothing in it may fail but requests that are refused."""
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console", lambda line: faults.append(line.text) if "Content Security" in line.text else 0
    )
    page.goto(page_url)
    page.wait_for_selector("[name=model] option", state="attached")
    page.fill("[name=max_tokens]", "24")
    page.fill("[name=temperature]", "1")
    page.fill("[name=seed]", "7")
    yield page
    page.close()
    assert [fault for fault in faults if "status of 400" not in fault] == []


def ask(page, text="hello"):
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#messages .user")


def finished(page):
    page.wait_for_selector("#send", timeout=60_000)


def answer(page):
    return page.text_content(".answer >> nth=-1")


def test_the_page_is_served_where_it_is_wanted(page_url, url):
    for path in ("/", "/page/style.css", *SCRIPTS):
        served = httpx2.get(page_url + path)
        assert served.status_code == 200
        assert "default-src 'none'" in served.headers["content-security-policy"]
        again = httpx2.get(page_url + path, headers={"if-none-match": served.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "http://" not in served.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in served.text
    assert httpx2.get(page_url + "/page/other.js").status_code == 404
    assert httpx2.get(url + "/").status_code == 404


def test_an_answer_is_shown_with_the_origin_of_each_token(page, sdk):
    page.select_option("[name=mode]", "forced")
    ask(page)
    finished(page)
    assert answer(page) == sdk.generate("hello", max_tokens=24, sampling=SAMPLED).text
    origins = page.eval_on_selector_all(".token", "all => all.map(it => it.classList[1])")
    assert len(origins) > 12
    assert set(origins) <= {"draft", "runner-up", "lookup", "ngram-store", "target"}
    assert "draft" in origins
    assert "24 tokens" in page.text_content(".figures >> nth=0")


def test_a_token_shows_its_round(page):
    page.select_option("[name=mode]", "forced")
    ask(page)
    finished(page)
    assert page.is_hidden("#round")
    page.focus(".answer")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert "drafted" in page.text_content("#round p")
    assert page.locator("#round svg rect").count() >= 1
    assert page.locator(".token.chosen").count() == 1
    page.focus("#prompt")
    assert page.is_hidden("#round")


def test_a_conversation_goes_on_and_ends(page):
    for text in ("hello", "more"):
        ask(page, text)
        finished(page)
    assert page.locator(".answer").count() == 2
    page.click("#new-chat")
    assert page.locator(".answer").count() == 0
    assert page.is_visible("#welcome")


def test_an_answer_can_be_stopped(page):
    page.fill("[name=max_tokens]", "1900")
    ask(page)
    page.wait_for_selector(".token", state="attached")
    page.keyboard.press("Escape")
    finished(page)
    assert "stopped" in page.text_content(".figures >> nth=-1")
    assert answer(page)


def test_what_is_refused_is_the_server_s_sentence_and_can_be_tried_again(page):
    page.fill("[name=temperature]", "300")
    ask(page)
    page.wait_for_selector(".error")
    assert "temperature is 300.0, but must be" in page.text_content(".error")
    page.fill("[name=temperature]", "1")
    page.click(".error button")
    finished(page)
    assert page.locator(".error").count() == 0
    assert answer(page)


def test_text_of_callers_and_models_is_never_markup(page):
    ask(page, "<img src=x onerror=alert(1)><b>bold</b>")
    finished(page)
    assert page.text_content(".user") == "<img src=x onerror=alert(1)><b>bold</b>"
    assert page.locator("#messages img, #messages b").count() == 0


def test_a_key_stays_in_its_tab(browser, page_url):
    page = browser.new_page()
    page.goto(page_url)
    page.fill("[name=key]", "sk-secret")
    page.press("[name=key]", "Tab")
    page.reload()
    assert page.input_value("[name=key]") == "sk-secret"
    assert page.evaluate("localStorage.length") == 0
    page.close()
