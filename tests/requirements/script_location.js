const fs = require('fs')
const system = JSON.parse(process.env.SYSTEM)
const seen = []
const walk = folder => {
  for (const entry of fs.readdirSync(folder, {withFileTypes: true})) {
    const path = folder === '/' ? '/' + entry.name : folder + '/' + entry.name
    seen.push(path)
    const skip = path === '/proc' || system.some(s => path === s || path.startsWith(s + '/'))
    if (entry.isDirectory() && !skip) walk(path)
  }
}
walk('/')
console.log(JSON.stringify({root: fs.readdirSync('/').sort(), seen}))
