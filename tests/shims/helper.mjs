import { execSync } from 'node:child_process'; export { execSync };
export function run(i) { return 'imported' }
export const ns = { deep: { run(i) { return 'deep' } } };
export class K { static go(i) { return 2 } }
export default function (i) { return 'default' }
