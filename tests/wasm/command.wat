;; A preview 1 command with small helpers.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ (param i32 i32) (result i32)))
  (memory (export "memory") 4)
  DATA
  (func $write (param $fd i32) (param $ptr i32) (param $len i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len))
    (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func $echo
    (local $n i32)
    (loop $more
      (i32.store (i32.const 0) (i32.const 4096))
      (i32.store (i32.const 4) (i32.const 60000))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
      (local.set $n (i32.load (i32.const 8)))
      (if (local.get $n) (then
        (call $write (i32.const 1) (i32.const 4096) (local.get $n))
        (br $more)))))
  (func $number (param $n i32)
    (i32.store8 (i32.const 512) (i32.add (i32.const 48) (i32.div_u (local.get $n) (i32.const 10))))
    (i32.store8 (i32.const 513) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
    (if (i32.ge_u (local.get $n) (i32.const 10))
      (then (call $write (i32.const 1) (i32.const 512) (i32.const 2)))
      (else (call $write (i32.const 1) (i32.const 513) (i32.const 1)))))
  (func $open (param $dir i32) (param $ptr i32) (param $len i32) (param $oflags i32) (param $rights i64) (result i32)
    (call $path_open (local.get $dir) (i32.const 1) (local.get $ptr) (local.get $len) (local.get $oflags)
      (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 600)))
  (func $main (export "_start") (local $i i32) BODY))
