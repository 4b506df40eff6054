;; Gives back its input: JSON on stdin, JSON on stdout (WASI preview 1).
;; Reads all of stdin into memory, then writes it to stdout.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  ;; 0: address and length for the call, 8: how much it did, 1024 and up: the text
  (func (export "_start") (local $end i32) (local $at i32)
    (local.set $end (i32.const 1024))
    (block $read_all
      (loop $more
        ;; keep room for 32 KiB beyond the end
        (if (i32.gt_u (i32.add (local.get $end) (i32.const 32768)) (i32.mul (memory.size) (i32.const 65536)))
          (then (br_if $read_all (i32.eq (memory.grow (i32.const 1)) (i32.const -1)))))
        (i32.store (i32.const 0) (local.get $end))
        (i32.store (i32.const 4) (i32.const 32768))
        (br_if $read_all (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (br_if $read_all (i32.eqz (i32.load (i32.const 8))))
        (local.set $end (i32.add (local.get $end) (i32.load (i32.const 8))))
        (br $more)))
    (local.set $at (i32.const 1024))
    (block $written_all
      (loop $more
        (br_if $written_all (i32.ge_u (local.get $at) (local.get $end)))
        (i32.store (i32.const 0) (local.get $at))
        (i32.store (i32.const 4) (i32.sub (local.get $end) (local.get $at)))
        (br_if $written_all (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (local.set $at (i32.add (local.get $at) (i32.load (i32.const 8))))
        (br $more)))))
