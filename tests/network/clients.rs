//! Unmodified programs reach the hosts that they were granted, and no other.

use super::{allow, in_our_world};
use crate::prelude::*;

/// (name, language, whether it speaks TLS with the machine's roots, script): each reads `url` and answers with the `at`
/// of the host, or fails.
const CLIENTS: [(&str, &str, bool, &str); 9] = [
    (
        "urllib",
        "python",
        true,
        "import json,sys,urllib.request as r\nurl=json.load(sys.stdin)['url']\n\
         print(json.dumps(json.load(r.urlopen(url,timeout=5))['at']))\n",
    ),
    (
        "asyncio",
        "python",
        true,
        "import asyncio,json,sys,urllib.parse as p\nu=p.urlsplit(json.load(sys.stdin)['url'])\nasync def main():\n \
         tls=u.scheme=='https'\n port=u.port or (443 if tls else 80)\n \
         r,w=await asyncio.open_connection(u.hostname,port,ssl=tls or None)\n \
         w.write(f'GET / HTTP/1.1\\r\\nHost: {u.hostname}\\r\\nConnection: close\\r\\n\\r\\n'.encode())\n \
         head=await r.readuntil(b'\\r\\n\\r\\n')\n n=int(head.lower().split(b'content-length:')[1].split()[0])\n \
         body=await r.readexactly(n)\n print(json.dumps(json.loads(body)['at']))\nasyncio.run(main())\n",
    ),
    (
        "socket",
        "python",
        true,
        "import json,socket,ssl,sys,urllib.parse as p\nu=p.urlsplit(json.load(sys.stdin)['url'])\n\
         tls=u.scheme=='https'\ns=socket.create_connection((u.hostname,u.port or (443 if tls else 80)),5)\n\
         s=ssl.create_default_context().wrap_socket(s,server_hostname=u.hostname) if tls else s\n\
         s.sendall(f'GET / HTTP/1.0\\r\\nHost: {u.hostname}\\r\\n\\r\\n'.encode())\nb=b''\n\
         while b.count(b'}')<2: b+=s.recv(65536)\nprint(json.dumps(json.loads(b.split(b'\\r\\n\\r\\n')[1])['at']))\n",
    ),
    (
        "curl",
        "python",
        true,
        "import json,subprocess,sys\nurl=json.load(sys.stdin)['url']\n\
         out=subprocess.run(['curl','-sS','--max-time','5',url],capture_output=True,check=True).stdout\n\
         print(json.dumps(json.loads(out)['at']))\n",
    ),
    (
        "node-http",
        "nodejs",
        true,
        "const fs=require('fs');const {url}=JSON.parse(fs.readFileSync(0));const secure=url.startsWith('https');\n\
         const ca=fs.readFileSync('/etc/ssl/certs/ca-certificates.crt');\n\
         require(secure?'https':'http').get(url,{ca},r=>{let b='';r.on('data',d=>b+=d);\n\
         r.on('end',()=>console.log(JSON.stringify(JSON.parse(b).at)))});\n",
    ),
    (
        "node-fetch",
        "nodejs",
        false,
        "const {url}=JSON.parse(require('fs').readFileSync(0));\n\
         fetch(url).then(r=>r.json()).then(b=>console.log(JSON.stringify(b.at)));\n",
    ),
    (
        "node-dns",
        "nodejs",
        false,
        "const {url}=JSON.parse(require('fs').readFileSync(0));const dns=require('dns');const http=require('http');\n\
         const u=new URL(url);dns.resolve4(u.hostname,(e,a)=>{if(e)throw e;\n\
         http.get({host:a[0],headers:{host:u.hostname}},r=>{let b='';r.on('data',d=>b+=d);\n\
         r.on('end',()=>console.log(JSON.stringify(JSON.parse(b).at)))})});\n",
    ),
    (
        "node-keepalive",
        "nodejs",
        false,
        "const {url}=JSON.parse(require('fs').readFileSync(0));const http=require('http');\n\
         const agent=new http.Agent({keepAlive:true,maxSockets:1});\n\
         const get=()=>new Promise((y,n)=>http.get(url,{agent},r=>{let b='';r.on('data',d=>b+=d);\n\
         r.on('end',()=>y(JSON.parse(b).at))}).on('error',n));\n\
         (async()=>{await get();await get();console.log(JSON.stringify(await get()));agent.destroy()})();\n",
    ),
    (
        "bun-fetch",
        "bun",
        true,
        "const {url}=JSON.parse(await Bun.stdin.text());\n\
         const r=await fetch(url,{tls:{ca:Bun.file('/etc/ssl/certs/ca-certificates.crt')}});\n\
         console.log(JSON.stringify((await r.json()).at));\n",
    ),
];

#[test]
fn unmodified_programs_reach_what_was_granted_and_nothing_else() {
    in_our_world(|world| {
        for (name, language, tls, script) in CLIENTS.into_iter().filter(|(_, language, ..)| has(language, 1)) {
            let tool = format!("esc:{name}");
            world.tool(name, language, script, &["api.example.com"], &allow("api.example.com"));
            for scheme in if tls { &["http", "https"][..] } else { &["http"] } {
                let url = format!("{scheme}://api.example.com/x");
                let ended = world.call(&tool, &json!({"url": url}));
                fits("ok \"45.20.0.1\"", &ended).unwrap_or_else(|e| panic!("{name} {url}: {e}"));
                assert!(ended.out["network"]["totals"]["connections"].as_u64() > Some(0), "{name}");
            }
            let (ended, heard) = world.called(&tool, &json!({"url": "http://other.example.com/x"}));
            assert_eq!(ended.kind(), "ScriptError", "{name}");
            assert_eq!(heard, Vec::<String>::new(), "{name}: no connection, and no lookup of the name");
            let denied = &ended.out["denials"]["observed"][0];
            let told = [&denied["operation"], &denied["target"], &denied["narrower"]];
            assert_eq!(told, ["resolve", "other.example.com", "manifest"], "{name}: {}", ended.out["denials"]);
        }
        world.control("http://other.example.com/x");
    });
}
