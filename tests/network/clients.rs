//! Unmodified programs reach the hosts that they were granted, and no other.

use super::{allow, in_both_worlds};
use crate::harness::{fits, has};
use serde_json::json;

/// (name, language, script): each reads `url` and answers with the `at` of the host, or with the error's class.
const CLIENTS: [(&str, &str, &str); 11] = [
    (
        "urllib",
        "python",
        "import json,sys,urllib.request as r\nurl=json.load(sys.stdin)['url']\n\
         print(json.dumps(json.load(r.urlopen(url,timeout=5))['at']))\n",
    ),
    (
        "http.client",
        "python",
        "import json,sys,http.client,urllib.parse as p\nu=p.urlsplit(json.load(sys.stdin)['url'])\n\
         kind=http.client.HTTPSConnection if u.scheme=='https' else http.client.HTTPConnection\n\
         c=kind(u.hostname,u.port,timeout=5)\nc.request('GET',u.path)\nprint(json.dumps(json.load(c.getresponse())['at']))\n",
    ),
    (
        "asyncio",
        "python",
        "import asyncio,json,sys,urllib.parse as p\nu=p.urlsplit(json.load(sys.stdin)['url'])\nasync def main():\n \
         tls=u.scheme=='https'\n r,w=await asyncio.open_connection(u.hostname,u.port or (443 if tls else 80),ssl=tls or None)\n \
         w.write(f'GET / HTTP/1.1\\r\\nHost: {u.hostname}\\r\\nConnection: close\\r\\n\\r\\n'.encode())\n \
         head=await r.readuntil(b'\\r\\n\\r\\n')\n n=int(head.lower().split(b'content-length:')[1].split()[0])\n \
         body=await r.readexactly(n)\n print(json.dumps(json.loads(body)['at']))\nasyncio.run(main())\n",
    ),
    (
        "socket",
        "python",
        "import json,socket,ssl,sys,urllib.parse as p\nu=p.urlsplit(json.load(sys.stdin)['url'])\ntls=u.scheme=='https'\n\
         s=socket.create_connection((u.hostname,u.port or (443 if tls else 80)),5)\n\
         s=ssl.create_default_context().wrap_socket(s,server_hostname=u.hostname) if tls else s\n\
         s.sendall(f'GET / HTTP/1.0\\r\\nHost: {u.hostname}\\r\\n\\r\\n'.encode())\nb=b''\n\
         while b.count(b'}')<2: b+=s.recv(65536)\nprint(json.dumps(json.loads(b.split(b'\\r\\n\\r\\n')[1])['at']))\n",
    ),
    (
        "curl",
        "python",
        "import json,subprocess,sys\nurl=json.load(sys.stdin)['url']\n\
         out=subprocess.run(['curl','-sS','--max-time','5',url],capture_output=True,check=True).stdout\n\
         print(json.dumps(json.loads(out)['at']))\n",
    ),
    (
        "node-http",
        "nodejs",
        "const fs=require('fs');const {url}=JSON.parse(fs.readFileSync(0));const secure=url.startsWith('https');\n\
         const ca=fs.readFileSync('/etc/ssl/certs/ca-certificates.crt');\n\
         require(secure?'https':'http').get(url,{ca},r=>{let b='';r.on('data',d=>b+=d);r.on('end',()=>console.log(JSON.stringify(JSON.parse(b).at)))});\n",
    ),
    (
        "node-fetch",
        "nodejs",
        "const {url}=JSON.parse(require('fs').readFileSync(0));\n\
         fetch(url).then(r=>r.json()).then(b=>console.log(JSON.stringify(b.at)));\n",
    ),
    (
        "node-dns",
        "nodejs",
        "const {url}=JSON.parse(require('fs').readFileSync(0));const dns=require('dns');const http=require('http');const u=new URL(url);\n\
         dns.resolve4(u.hostname,(e,a)=>{if(e)throw e;http.get({host:a[0],headers:{host:u.hostname}},r=>{let b='';r.on('data',d=>b+=d);\n\
         r.on('end',()=>console.log(JSON.stringify(JSON.parse(b).at)))})});\n",
    ),
    (
        "node-keepalive",
        "nodejs",
        "const {url}=JSON.parse(require('fs').readFileSync(0));const http=require('http');const agent=new http.Agent({keepAlive:true,maxSockets:1});\n\
         const get=()=>new Promise((y,n)=>http.get(url,{agent},r=>{let b='';r.on('data',d=>b+=d);r.on('end',()=>y(JSON.parse(b).at))}).on('error',n));\n\
         (async()=>{await get();await get();console.log(JSON.stringify(await get()));agent.destroy()})();\n",
    ),
    (
        "bun-fetch",
        "bun",
        "const {url}=JSON.parse(await Bun.stdin.text());\n\
         const r=await fetch(url,{tls:{ca:Bun.file('/etc/ssl/certs/ca-certificates.crt')}});console.log(JSON.stringify((await r.json()).at));\n",
    ),
    (
        "bun-http",
        "bun",
        "import {get} from 'node:http';const {url}=JSON.parse(await Bun.stdin.text());\n\
         get(url,r=>{let b='';r.on('data',d=>b+=d);r.on('end',()=>console.log(JSON.stringify(JSON.parse(b).at)))});\n",
    ),
];

/// Clients that trust only roots of their own, or that speak plain HTTP only.
const PLAIN: [&str; 4] = ["node-fetch", "node-dns", "node-keepalive", "bun-http"];

#[test]
fn unmodified_programs_reach_what_was_granted_and_nothing_else() {
    in_both_worlds("clients", |world| {
        for (name, language, script) in CLIENTS.into_iter().filter(|(_, language, _)| has(language, 1)) {
            let tool = format!("esc:{name}");
            world.tool(name, language, script, &["api.example.com"], &allow("api.example.com"));
            let schemes = if PLAIN.contains(&name) { &["http"][..] } else { &["http", "https"] };
            for scheme in schemes {
                let url = format!("{scheme}://api.example.com/x");
                let ended = world.call(&tool, &json!({"url": url}));
                fits("ok \"45.20.0.1\"", &ended)
                    .unwrap_or_else(|e| panic!("{name} {url} {:?}: {e}", world.playground.who));
                assert_eq!(ended.out["network"]["totals"]["connections"].as_u64().map(|n| n > 0), Some(true), "{name}");
                let refused = format!("{scheme}://other.example.com/x");
                let mut ended = None;
                let heard = world.heard(|| ended = Some(world.call(&tool, &json!({"url": refused}))));
                let ended = ended.unwrap();
                assert_eq!(ended.kind(), "ScriptError", "{name} {refused}");
                assert_eq!(heard, Vec::<String>::new(), "{name}: nobody came, and no name was asked for");
                let denied = &ended.out["denials"]["observed"][0];
                let told = [&denied["operation"], &denied["target"], &denied["narrower"]];
                assert_eq!(told, ["resolve", "other.example.com", "manifest"], "{name}: {}", ended.out["denials"]);
            }
        }
        world.control("http://other.example.com/x");
    });
}
