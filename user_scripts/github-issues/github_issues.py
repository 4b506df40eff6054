"""The open issues of a repository. The token that GitHub asks for is added on the way: this script never has it."""

from urllib.request import Request, urlopen
import json


def issues(repository, most=5):
    # Plain http to the name: toolhost speaks TLS to the host and adds the header that its policy names.
    url = f"http://api.github.com/repos/{repository}/issues?state=open&per_page={most}"
    request = Request(url, headers={"Accept": "application/vnd.github+json", "User-Agent": "toolhost-example"})
    with urlopen(request, timeout=10) as answer:
        found = json.load(answer)
    return [{"number": issue["number"], "title": issue["title"]} for issue in found]
