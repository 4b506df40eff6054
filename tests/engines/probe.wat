;; Made from probe.c by build.sh; change that file, not this one.
(module
  (type (;0;) (func (param i32 i32 i32 i32) (result i32)))
  (type (;1;) (func (param i32)))
  (type (;2;) (func (param i32 i32) (result i32)))
  (type (;3;) (func (param i32 i32 i32) (result i32)))
  (type (;4;) (func (param i32 i32 i32 i32 i64 i64 i32) (result i32)))
  (type (;5;) (func (param i32 i32 i32 i32 i32 i32) (result i32)))
  (type (;6;) (func (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (type (;7;) (func (param i32 i32 i32 i32 i32) (result i32)))
  (type (;8;) (func (param i32 i32 i32 i64 i32) (result i32)))
  (type (;9;) (func (param i32 i64 i32) (result i32)))
  (type (;10;) (func (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (type (;11;) (func))
  (type (;12;) (func (param i32) (result i32)))
  (type (;13;) (func (result i64)))
  (type (;14;) (func (param i32 i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func (;0;) (type 0)))
  (import "wasi_snapshot_preview1" "proc_exit" (func (;1;) (type 1)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func (;2;) (type 0)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func (;3;) (type 2)))
  (import "wasi_snapshot_preview1" "environ_get" (func (;4;) (type 2)))
  (import "wasi_snapshot_preview1" "path_unlink_file" (func (;5;) (type 3)))
  (import "wasi_snapshot_preview1" "path_create_directory" (func (;6;) (type 3)))
  (import "wasi_snapshot_preview1" "path_filestat_set_times" (func (;7;) (type 4)))
  (import "wasi_snapshot_preview1" "path_rename" (func (;8;) (type 5)))
  (import "wasi_snapshot_preview1" "path_link" (func (;9;) (type 6)))
  (import "wasi_snapshot_preview1" "path_symlink" (func (;10;) (type 7)))
  (import "wasi_snapshot_preview1" "fd_readdir" (func (;11;) (type 8)))
  (import "wasi_snapshot_preview1" "fd_write" (func (;12;) (type 0)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func (;13;) (type 9)))
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func (;14;) (type 2)))
  (import "wasi_snapshot_preview1" "fd_prestat_dir_name" (func (;15;) (type 3)))
  (import "wasi_snapshot_preview1" "path_open" (func (;16;) (type 10)))
  (func (;17;) (type 11)
    (local i32 i32 i32 i32 i32 i64 i32 i32 i32 i32 i32)
    global.get 0
    i32.const 1104
    i32.sub
    local.tee 0
    global.set 0
    local.get 0
    i32.const 0
    i32.store offset=556
    i32.const 0
    local.set 1
    block  ;; label = @1
      block  ;; label = @2
        block  ;; label = @3
          loop  ;; label = @4
            local.get 0
            i32.const 2097152
            local.get 1
            i32.sub
            i32.store offset=564
            local.get 0
            local.get 1
            i32.const 1504
            i32.add
            i32.store offset=560
            i32.const 0
            local.get 0
            i32.const 560
            i32.add
            i32.const 1
            local.get 0
            i32.const 556
            i32.add
            call 0
            br_if 1 (;@3;)
            block  ;; label = @5
              local.get 0
              i32.load offset=556
              local.tee 2
              i32.eqz
              br_if 0 (;@5;)
              local.get 2
              local.get 1
              i32.add
              local.tee 1
              i32.const 2097152
              i32.lt_u
              br_if 1 (;@4;)
            end
          end
          i32.const 1079
          local.get 0
          i32.const 512
          i32.add
          i32.const 32
          call 18
          local.set 2
          i32.const 1115
          local.get 0
          i32.const 512
          call 18
          local.set 3
          block  ;; label = @4
            local.get 2
            i32.const 1039
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 3
            call 20
            br 3 (;@1;)
          end
          local.get 2
          i32.const 1166
          call 19
          i32.eqz
          br_if 1 (;@2;)
          i32.const -32768
          local.set 1
          i32.const 1090
          call 21
          local.set 0
          loop  ;; label = @4
            block  ;; label = @5
              local.get 1
              br_if 0 (;@5;)
              i32.const 1317
              call 20
              block  ;; label = @6
                loop  ;; label = @7
                  local.get 0
                  i32.eqz
                  br_if 1 (;@6;)
                  i32.const 1
                  i32.const 2098672
                  local.get 0
                  i32.const 32768
                  local.get 0
                  i32.const 32768
                  i32.lt_u
                  select
                  local.tee 1
                  call 22
                  drop
                  local.get 0
                  local.get 1
                  i32.sub
                  local.set 0
                  br 0 (;@7;)
                end
              end
              i32.const 1317
              call 20
              br 4 (;@1;)
            end
            local.get 1
            i32.const 2131440
            i32.add
            i32.const 120
            i32.store8
            local.get 1
            i32.const 1
            i32.add
            local.set 1
            br 0 (;@4;)
          end
        end
        i32.const 9
        call 1
        unreachable
      end
      i32.const 1097
      local.set 4
      i32.const 1090
      call 21
      local.set 1
      block  ;; label = @2
        local.get 2
        i32.const 1136
        call 19
        br_if 0 (;@2;)
        block  ;; label = @3
          local.get 2
          i32.const 1082
          call 19
          i32.eqz
          br_if 0 (;@3;)
          call 23
          local.get 1
          i64.extend_i32_u
          i64.add
          local.set 5
          loop  ;; label = @4
            call 23
            local.get 5
            i64.lt_u
            br_if 0 (;@4;)
            br 2 (;@2;)
          end
        end
        block  ;; label = @3
          local.get 2
          i32.const 1070
          call 19
          i32.eqz
          br_if 0 (;@3;)
          i32.const 0
          i32.const 1
          i32.store offset=2131456
          i32.const 0
          local.get 1
          i64.extend_i32_u
          i64.const 1000000
          i64.mul
          i64.store offset=2131464
          i32.const 2131440
          local.get 0
          i32.const 560
          i32.add
          i32.const 1
          local.get 0
          i32.const 1088
          i32.add
          call 2
          drop
          br 1 (;@2;)
        end
        block  ;; label = @3
          local.get 2
          i32.const 1027
          call 19
          i32.eqz
          br_if 0 (;@3;)
          local.get 1
          i32.const 16
          i32.shr_u
          memory.grow
          i32.const -1
          i32.ne
          br_if 1 (;@2;)
          i32.const 1
          call 1
          unreachable
        end
        block  ;; label = @3
          block  ;; label = @4
            local.get 2
            i32.const 1120
            call 19
            br_if 0 (;@4;)
            local.get 2
            i32.const 1132
            call 19
            i32.eqz
            br_if 1 (;@3;)
            i32.const -32768
            local.set 0
            loop  ;; label = @5
              block  ;; label = @6
                local.get 0
                br_if 0 (;@6;)
                loop  ;; label = @7
                  local.get 1
                  i32.eqz
                  br_if 5 (;@2;)
                  i32.const 2
                  i32.const 2098672
                  local.get 1
                  i32.const 32768
                  local.get 1
                  i32.const 32768
                  i32.lt_u
                  select
                  local.tee 0
                  call 22
                  drop
                  local.get 1
                  local.get 0
                  i32.sub
                  local.set 1
                  br 0 (;@7;)
                end
              end
              local.get 0
              i32.const 2131440
              i32.add
              i32.const 120
              i32.store8
              local.get 0
              i32.const 1
              i32.add
              local.set 0
              br 0 (;@5;)
            end
          end
          unreachable
          unreachable
        end
        block  ;; label = @3
          local.get 2
          i32.const 1157
          call 19
          i32.eqz
          br_if 0 (;@3;)
          local.get 0
          i32.const 0
          i32.store offset=560
          local.get 0
          i32.const 0
          i32.store offset=1088
          local.get 3
          call 24
          local.set 6
          block  ;; label = @4
            local.get 0
            i32.const 560
            i32.add
            local.get 0
            i32.const 1088
            i32.add
            call 3
            br_if 0 (;@4;)
            local.get 0
            i32.load offset=560
            i32.const 64
            i32.gt_u
            br_if 0 (;@4;)
            local.get 0
            i32.load offset=1088
            i32.const 16384
            i32.gt_u
            br_if 0 (;@4;)
            i32.const 2131488
            i32.const 2131744
            call 4
            br_if 0 (;@4;)
            i32.const 0
            local.set 7
            local.get 0
            i32.load offset=560
            local.set 8
            loop  ;; label = @5
              local.get 7
              local.get 8
              i32.eq
              br_if 1 (;@4;)
              local.get 0
              local.set 2
              local.get 6
              local.set 1
              local.get 7
              i32.const 2
              i32.shl
              i32.const 2131488
              i32.add
              i32.load
              local.tee 9
              local.set 3
              block  ;; label = @6
                block  ;; label = @7
                  block  ;; label = @8
                    loop  ;; label = @9
                      local.get 1
                      i32.eqz
                      br_if 1 (;@8;)
                      local.get 1
                      i32.const -1
                      i32.add
                      local.set 1
                      local.get 2
                      i32.load8_u
                      local.set 4
                      local.get 3
                      i32.load8_u
                      local.set 10
                      local.get 3
                      i32.const 1
                      i32.add
                      local.set 3
                      local.get 2
                      i32.const 1
                      i32.add
                      local.set 2
                      local.get 10
                      local.get 4
                      i32.eq
                      br_if 0 (;@9;)
                      br 2 (;@7;)
                    end
                  end
                  local.get 9
                  local.get 6
                  i32.add
                  local.tee 1
                  i32.load8_u
                  i32.const 61
                  i32.eq
                  br_if 1 (;@6;)
                end
                local.get 7
                i32.const 1
                i32.add
                local.set 7
                br 1 (;@5;)
              end
            end
            local.get 1
            i32.const 1
            i32.add
            local.set 4
            br 2 (;@2;)
          end
          i32.const 44
          call 25
          local.set 4
          br 1 (;@2;)
        end
        local.get 3
        local.get 0
        i32.const 1084
        i32.add
        call 26
        local.set 1
        local.get 0
        i32.load offset=1084
        local.tee 4
        call 24
        local.set 10
        i32.const 1076
        local.get 0
        i32.const 560
        i32.add
        i32.const 512
        call 18
        local.tee 6
        local.get 0
        i32.const 1080
        i32.add
        call 26
        local.set 7
        block  ;; label = @3
          block  ;; label = @4
            local.get 2
            i32.const 1100
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 1
            local.get 4
            local.get 10
            call 5
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1064
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 1
            local.get 4
            local.get 10
            call 6
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1126
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 1
            i32.const 1
            local.get 4
            local.get 10
            i64.const 1000000000
            i64.const 1000000000
            i32.const 5
            call 7
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1150
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 0
            i32.load offset=1080
            local.set 0
            local.get 1
            local.get 4
            local.get 10
            local.get 7
            local.get 0
            local.get 0
            call 24
            call 8
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1110
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 0
            i32.load offset=1080
            local.set 0
            local.get 1
            i32.const 0
            local.get 4
            local.get 10
            local.get 7
            local.get 0
            local.get 0
            call 24
            call 9
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1107
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 6
            local.get 6
            call 24
            local.get 1
            local.get 4
            local.get 10
            call 10
            local.set 1
            br 1 (;@3;)
          end
          i32.const 52
          local.set 1
          block  ;; label = @4
            local.get 2
            i32.const 1172
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 3
            i32.const 0
            i64.const 2
            local.get 0
            i32.const 1100
            i32.add
            call 27
            local.tee 1
            br_if 0 (;@4;)
            local.get 0
            i32.const 0
            i64.load offset=1488
            i64.store offset=1088
            local.get 0
            i32.load offset=1100
            local.get 0
            i32.const 1088
            i32.add
            i32.const 1
            local.get 0
            i32.const 1096
            i32.add
            call 0
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1034
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 3
            i32.const 2
            i64.const 2
            local.get 0
            i32.const 1100
            i32.add
            call 27
            local.tee 1
            br_if 0 (;@4;)
            local.get 0
            i32.load offset=1100
            i32.const 2098672
            i32.const 32768
            i64.const 0
            local.get 0
            i32.const 1096
            i32.add
            call 11
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1144
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 3
            i32.const 9
            i64.const 64
            local.get 0
            i32.const 1100
            i32.add
            call 27
            local.tee 1
            br_if 0 (;@4;)
            local.get 0
            i32.load offset=1100
            i32.const 1319
            i32.const 4
            call 22
            local.set 1
            br 1 (;@3;)
          end
          block  ;; label = @4
            local.get 2
            i32.const 1092
            call 19
            i32.eqz
            br_if 0 (;@4;)
            local.get 3
            i32.const 1
            i64.const 64
            local.get 0
            i32.const 1100
            i32.add
            call 27
            local.tee 1
            br_if 0 (;@4;)
            i32.const 0
            local.set 1
            i32.const 1090
            call 21
            local.set 2
            loop  ;; label = @5
              local.get 2
              i32.eqz
              br_if 2 (;@3;)
              local.get 1
              br_if 2 (;@3;)
              local.get 2
              local.get 2
              i32.const 32768
              local.get 2
              i32.const 32768
              i32.lt_u
              select
              local.tee 1
              i32.sub
              local.set 2
              local.get 0
              i32.load offset=1100
              i32.const 2098672
              local.get 1
              call 22
              local.set 1
              br 0 (;@5;)
            end
          end
          local.get 2
          i32.const 1087
          call 19
          i32.eqz
          br_if 0 (;@3;)
          i32.const 0
          local.set 1
          i32.const 1090
          call 21
          local.set 2
          loop  ;; label = @4
            local.get 2
            i32.eqz
            br_if 1 (;@3;)
            local.get 1
            br_if 1 (;@3;)
            local.get 2
            i32.const -1
            i32.add
            local.set 2
            local.get 3
            i32.const 2
            i64.const 2
            local.get 0
            i32.const 1100
            i32.add
            call 27
            local.set 1
            br 0 (;@4;)
          end
        end
        local.get 1
        call 25
        local.set 4
      end
      i32.const 1310
      call 20
      local.get 4
      call 20
      i32.const 1024
      call 20
      local.get 4
      i32.const 1301
      call 19
      i32.eqz
      br_if 0 (;@1;)
      i32.const 1
      call 1
      unreachable
    end
    i32.const 1045
    call 21
    call 1
    unreachable)
  (func (;18;) (type 3) (param i32 i32 i32) (result i32)
    (local i32 i32 i32 i32 i32 i32 i32 i32 i32)
    local.get 0
    call 24
    local.tee 3
    i32.const 1507
    i32.add
    local.set 4
    local.get 3
    i32.const 2
    i32.add
    local.set 5
    local.get 3
    i32.const 1
    i32.add
    local.set 6
    i32.const 1504
    local.set 7
    block  ;; label = @1
      loop  ;; label = @2
        block  ;; label = @3
          local.get 7
          i32.load8_u
          local.tee 8
          br_if 0 (;@3;)
          i32.const 0
          local.set 9
          br 2 (;@1;)
        end
        i32.const 0
        local.set 9
        block  ;; label = @3
          block  ;; label = @4
            loop  ;; label = @5
              local.get 3
              local.get 9
              i32.eq
              br_if 1 (;@4;)
              local.get 0
              local.get 9
              i32.add
              local.set 10
              local.get 7
              local.get 9
              i32.add
              local.set 11
              local.get 9
              i32.const 1
              i32.add
              local.set 9
              local.get 11
              i32.const 1
              i32.add
              i32.load8_u
              local.get 10
              i32.load8_u
              i32.eq
              br_if 0 (;@5;)
              br 2 (;@3;)
            end
          end
          local.get 8
          i32.const 34
          i32.ne
          br_if 0 (;@3;)
          local.get 7
          local.get 6
          i32.add
          i32.load8_u
          i32.const 34
          i32.ne
          br_if 0 (;@3;)
          local.get 7
          local.get 5
          i32.add
          i32.load8_u
          i32.const 58
          i32.ne
          br_if 0 (;@3;)
          local.get 2
          i32.const 1
          local.get 2
          i32.const 1
          i32.gt_u
          select
          i32.const -1
          i32.add
          local.set 0
          local.get 4
          local.get 3
          local.get 7
          i32.add
          i32.const 3
          i32.add
          i32.load8_u
          local.tee 7
          i32.const 34
          i32.eq
          i32.add
          local.set 11
          i32.const 0
          local.set 9
          loop  ;; label = @4
            local.get 11
            local.get 9
            i32.add
            i32.load8_u
            local.tee 10
            i32.eqz
            br_if 3 (;@1;)
            block  ;; label = @5
              block  ;; label = @6
                local.get 7
                i32.const 34
                i32.ne
                br_if 0 (;@6;)
                local.get 10
                i32.const 34
                i32.eq
                br_if 5 (;@1;)
                br 1 (;@5;)
              end
              local.get 10
              i32.const -48
              i32.add
              i32.const 255
              i32.and
              i32.const 9
              i32.gt_u
              br_if 4 (;@1;)
            end
            block  ;; label = @5
              local.get 0
              local.get 9
              i32.ne
              br_if 0 (;@5;)
              local.get 0
              local.set 9
              br 4 (;@1;)
            end
            local.get 1
            local.get 9
            i32.add
            local.get 10
            i32.store8
            local.get 9
            i32.const 1
            i32.add
            local.set 9
            br 0 (;@4;)
          end
        end
        local.get 4
        i32.const 1
        i32.add
        local.set 4
        local.get 7
        i32.const 1
        i32.add
        local.set 7
        br 0 (;@2;)
      end
    end
    local.get 1
    local.get 9
    i32.add
    i32.const 0
    i32.store8
    local.get 1)
  (func (;19;) (type 2) (param i32 i32) (result i32)
    (local i32 i32)
    block  ;; label = @1
      loop  ;; label = @2
        local.get 1
        i32.load8_u
        local.set 2
        local.get 0
        i32.load8_u
        local.tee 3
        i32.eqz
        br_if 1 (;@1;)
        local.get 3
        local.get 2
        i32.const 255
        i32.and
        i32.ne
        br_if 1 (;@1;)
        local.get 1
        i32.const 1
        i32.add
        local.set 1
        local.get 0
        i32.const 1
        i32.add
        local.set 0
        br 0 (;@2;)
      end
    end
    local.get 3
    local.get 2
    i32.const 255
    i32.and
    i32.eq)
  (func (;20;) (type 1) (param i32)
    i32.const 1
    local.get 0
    local.get 0
    call 24
    call 22
    drop)
  (func (;21;) (type 12) (param i32) (result i32)
    (local i32 i32 i32)
    global.get 0
    i32.const 16
    i32.sub
    local.tee 1
    global.set 0
    i32.const 0
    local.set 2
    local.get 0
    local.get 1
    i32.const 16
    call 18
    local.set 0
    loop (result i32)  ;; label = @1
      block  ;; label = @2
        local.get 0
        i32.load8_s
        local.tee 3
        br_if 0 (;@2;)
        local.get 1
        i32.const 16
        i32.add
        global.set 0
        local.get 2
        return
      end
      local.get 0
      i32.const 1
      i32.add
      local.set 0
      local.get 2
      i32.const 10
      i32.mul
      local.get 3
      i32.add
      i32.const -48
      i32.add
      local.set 2
      br 0 (;@1;)
    end)
  (func (;22;) (type 3) (param i32 i32 i32) (result i32)
    (local i32 i32)
    global.get 0
    i32.const 16
    i32.sub
    local.tee 3
    global.set 0
    loop (result i32)  ;; label = @1
      block  ;; label = @2
        block  ;; label = @3
          block  ;; label = @4
            local.get 2
            br_if 0 (;@4;)
            i32.const 0
            local.set 4
            br 1 (;@3;)
          end
          local.get 3
          local.get 2
          i32.store offset=12
          local.get 3
          local.get 1
          i32.store offset=8
          local.get 3
          i32.const 0
          i32.store offset=4
          local.get 0
          local.get 3
          i32.const 8
          i32.add
          i32.const 1
          local.get 3
          i32.const 4
          i32.add
          call 12
          local.tee 4
          br_if 0 (;@3;)
          local.get 3
          i32.load offset=4
          local.tee 4
          br_if 1 (;@2;)
          i32.const 29
          local.set 4
        end
        local.get 3
        i32.const 16
        i32.add
        global.set 0
        local.get 4
        return
      end
      local.get 2
      local.get 4
      i32.sub
      local.set 2
      local.get 1
      local.get 4
      i32.add
      local.set 1
      br 0 (;@1;)
    end)
  (func (;23;) (type 13) (result i64)
    (local i32 i64)
    global.get 0
    i32.const 16
    i32.sub
    local.tee 0
    global.set 0
    local.get 0
    i64.const 0
    i64.store offset=8
    i32.const 1
    i64.const 1
    local.get 0
    i32.const 8
    i32.add
    call 13
    drop
    local.get 0
    i64.load offset=8
    local.set 1
    local.get 0
    i32.const 16
    i32.add
    global.set 0
    local.get 1
    i64.const 1000000
    i64.div_u)
  (func (;24;) (type 12) (param i32) (result i32)
    (local i32 i32 i32)
    i32.const 0
    local.set 1
    loop  ;; label = @1
      local.get 0
      local.get 1
      i32.add
      local.set 2
      local.get 1
      i32.const 1
      i32.add
      local.tee 3
      local.set 1
      local.get 2
      i32.load8_u
      br_if 0 (;@1;)
    end
    local.get 3
    i32.const -1
    i32.add)
  (func (;25;) (type 12) (param i32) (result i32)
    (local i32)
    i32.const -160
    local.set 1
    loop (result i32)  ;; label = @1
      block  ;; label = @2
        local.get 1
        br_if 0 (;@2;)
        i32.const 1050
        return
      end
      block  ;; label = @2
        local.get 1
        i32.const 1488
        i32.add
        i32.load
        local.get 0
        i32.ne
        br_if 0 (;@2;)
        local.get 1
        i32.const 1492
        i32.add
        i32.load
        return
      end
      local.get 1
      i32.const 8
      i32.add
      local.set 1
      br 0 (;@1;)
    end)
  (func (;26;) (type 2) (param i32 i32) (result i32)
    (local i32 i32 i32 i32 i32 i32 i32 i32 i32)
    global.get 0
    i32.const 16
    i32.sub
    local.tee 2
    global.set 0
    local.get 1
    local.get 0
    i32.store
    i32.const 3
    local.set 3
    i32.const 0
    local.set 4
    i32.const 3
    local.set 5
    loop (result i32)  ;; label = @1
      local.get 5
      local.set 6
      local.get 4
      local.set 7
      block  ;; label = @2
        block  ;; label = @3
          block  ;; label = @4
            local.get 3
            local.get 2
            i32.const 8
            i32.add
            call 14
            br_if 0 (;@4;)
            local.get 2
            i32.load offset=12
            local.tee 4
            i32.const 511
            i32.gt_u
            br_if 1 (;@3;)
            local.get 3
            i32.const 2148128
            local.get 4
            call 15
            br_if 1 (;@3;)
            local.get 2
            i32.load offset=12
            local.tee 8
            i32.const 2148128
            i32.add
            i32.const 0
            i32.store8
            block  ;; label = @5
              i32.const 2148128
              i32.const 1308
              call 19
              i32.eqz
              br_if 0 (;@5;)
              local.get 0
              i32.load8_u
              i32.const 47
              i32.eq
              br_if 0 (;@5;)
              i32.const 0
              local.set 4
              local.get 3
              local.set 5
              local.get 7
              i32.eqz
              br_if 3 (;@2;)
            end
            i32.const 0
            local.set 4
            block  ;; label = @5
              loop  ;; label = @6
                local.get 8
                local.get 4
                i32.eq
                br_if 1 (;@5;)
                local.get 4
                i32.const 2148128
                i32.add
                local.set 5
                local.get 0
                local.get 4
                i32.add
                local.set 9
                local.get 4
                i32.const 1
                i32.add
                local.set 4
                local.get 9
                i32.load8_u
                local.get 5
                i32.load8_u
                i32.ne
                br_if 3 (;@3;)
                br 0 (;@6;)
              end
            end
            local.get 8
            local.get 7
            i32.le_u
            br_if 1 (;@3;)
            block  ;; label = @5
              local.get 0
              local.get 8
              i32.add
              local.tee 10
              i32.load8_u
              local.tee 9
              i32.const 47
              i32.eq
              br_if 0 (;@5;)
              local.get 7
              local.set 4
              local.get 6
              local.set 5
              local.get 9
              br_if 3 (;@2;)
            end
            local.get 1
            local.get 10
            i32.const 1
            i32.add
            i32.const 1308
            local.get 9
            select
            i32.store
            local.get 8
            local.set 4
            local.get 3
            local.set 5
            br 2 (;@2;)
          end
          local.get 2
          i32.const 16
          i32.add
          global.set 0
          local.get 6
          return
        end
        local.get 7
        local.set 4
        local.get 6
        local.set 5
      end
      local.get 3
      i32.const 1
      i32.add
      local.set 3
      br 0 (;@1;)
    end)
  (func (;27;) (type 14) (param i32 i32 i64 i32) (result i32)
    (local i32 i32)
    global.get 0
    i32.const 16
    i32.sub
    local.tee 4
    global.set 0
    local.get 0
    local.get 4
    i32.const 12
    i32.add
    call 26
    local.set 5
    local.get 4
    i32.load offset=12
    local.set 0
    local.get 5
    i32.const 1
    local.get 0
    local.get 0
    call 24
    local.get 1
    local.get 2
    i64.const 0
    i32.const 0
    local.get 3
    call 16
    local.set 0
    local.get 4
    i32.const 16
    i32.add
    global.set 0
    local.get 0)
  (table (;0;) 1 1 funcref)
  (memory (;0;) 34)
  (global (;0;) (mut i32) (i32.const 2214176))
  (export "memory" (memory 0))
  (export "_start" (func 17))
  (data (;0;) (i32.const 1024) "\22}\00memory\00list\00print\00exit\00another error\00mkdir\00sleep\00to\00do\00spin\00open\00fill\00ok\00unlink\00symlink\00path\00crash\00touch\00log\00nothing\00write\00rename\00variable\00flood\00read\00EXDEV\00EEXIST\00ENOENT\00ENOSYS\00EROFS\00EACCES\00ENOTDIR\00EISDIR\00ENOTSUP\00ELOOP\00EIO\00EPERM\00ENOMEM\00EINVAL\00EFBIG\00EBADF\00EMFILE\00ENOTCAPABLE\00ENOSPC\00.\00{\22did\22:\22\00new\0a\00\00\00\00\00\00\00\00\00I\04\00\00\02\00\00\00\ba\04\00\00\08\00\00\00\fc\04\00\00\14\00\00\00\9f\04\00\00\16\00\00\00\f6\04\00\00\1c\00\00\00\ef\04\00\00\1d\00\00\00\de\04\00\00\1f\00\00\00\c9\04\00\00 \00\00\00\d8\04\00\00!\00\00\00\02\05\00\00,\00\00\00\a6\04\00\000\00\00\00\e8\04\00\003\00\00\00\15\05\00\004\00\00\00\ad\04\00\006\00\00\00\c1\04\00\00:\00\00\00\d0\04\00\00?\00\00\00\e2\04\00\00E\00\00\00\b4\04\00\00K\00\00\00\99\04\00\00L\00\00\00\09\05\00\00\f0\05 \00@\00\00\00"))
