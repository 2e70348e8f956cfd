# Sourced by gpu_check.sh: the rows. A row's function runs in a process of its own, under `set -e`, with what find_libraries has
# exported; it ends with the row's verdict, and writes one line about it with `note`.

# Name, and seconds at most.
rows=(
  "machine 60"
  "starts 20"
  "kernels 90" "kernels-without-cudnn 60"
  "conformance 120"
  "record 60"
  "validate-mlp-1 40" "validate-mlp-4 40"
  "validate-gpt2-1 60" "validate-gpt2-4 60" "validate-gpt2-4-ipc 60" "validate-gpt2-4-staged 60"
  "validate-llama-1 60" "validate-llama-4 60"
  "validate-resnet-1 60" "validate-resnet-4 60" "validate-resnet-without-cudnn 60"
  "validate-optimizers 90"
  "structure-gpt2-124m 120" "structure-resnet50 90"
  "fault-kill 40" "fault-memory 60" "fault-index 40"
  "sanitize-memcheck 90" "sanitize-initcheck 90" "sanitize-synccheck 90" "sanitize-racecheck 90"
)

note() { printf '%s\n' "$*" >>"$work/note"; }

cannot_run() {
  note "$*"
  exit 77
}

wrong() {
  note "$*"
  exit 1
}

pipeshard() { "$bundle/bin/pipeshard" "$@"; }

# code_of COMMAND...: its output is the row's, and in $work/output.
code_of() {
  local code=0
  "$@" >"$work/output" 2>&1 || code=$?
  cat "$work/output" >&2
  echo $code
}

# Where NVIDIA's libraries are: an installed toolkit, the packages of PyTorch, or the stand-in.
find_libraries() {
  local folder
  libraries=""
  if [ -n "$standin" ]; then
    libraries=$standin
    export STANDIN_TWINS=$standin/libstandin_twin.so STANDIN_LOG=$work/standin.log
  else
    for folder in /usr/local/cuda/lib64 /usr/local/cuda-13*/lib64 \
      $(python3 -c 'import glob, sys; print(*[f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib")])' 2>/dev/null); do
      [ ! -d "$folder" ] || libraries+=${libraries:+:}$folder
    done
  fi
  export libraries PIPESHARD_PROFILE=off CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
  [ -z "$libraries" ] || export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# Sets device ("no GPU": there is none), driver and commit.
describe_machine() {
  device="no GPU" driver=none
  commit=$(awk '$1 == "commit" {print $2}' "$bundle/MANIFEST")
  if [ -n "$standin" ]; then
    device=stand-in
  elif [ -e /dev/nvidiactl ]; then
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sed -n 1p)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed -n 1p)
    device=${device:-a GPU} driver=${driver:-unknown}
  fi
  export device driver commit
}

# Of the device that is used.
memory_mib() {
  if [ -n "$standin" ]; then
    echo 1024
  else
    nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sed -n 1p
  fi
}

row_machine() {
  uname -srm
  grep -m 1 'model name' /proc/cpuinfo || true
  grep MemTotal /proc/meminfo
  ldd --version | sed -n 1p
  echo "NVIDIA's libraries are looked for in ${libraries:-the folders of the system}"
  [ -n "$standin" ] || read_libraries
  python3 -c 'import importlib.metadata as m; print("PyTorch", m.version("torch"))' 2>/dev/null || echo "no PyTorch"
  "$(sanitizer)" --version 2>/dev/null || echo "no compute-sanitizer"
  local missing
  missing=$(ldd "$bundle/lib/pipeshard/pipeshard_cuda.so" | awk '/not found/ && /libcu/ {print $1}' | paste -sd ' ')
  [ -z "$missing" ] || cannot_run "not found: $missing"
  if [ -z "$standin" ]; then
    [ "$device" != "no GPU" ] || cannot_run "there is no GPU"
    nvidia-smi || cannot_run "there is a GPU, and no nvidia-smi that works"
  fi
  note "$(grep -c ^processor /proc/cpuinfo) processors, $(memory_mib) MiB on the GPU"
}

# From the disk, where they are gigabytes, so that no other row's time has it.
read_libraries() {
  local files folder start=$SECONDS
  files=$(
    ldd "$bundle/lib/pipeshard/pipeshard_cuda.so" | awk '$2 == "=>" && $1 ~ /^lib(cudart|cublas)/ && $3 ~ /^\// {print $3}'
    for folder in ${libraries//:/ }; do ls "$folder"/libcudnn*.so.9 "$folder"/libcublas*.so.13; done 2>/dev/null
    PATH=$PATH:/sbin ldconfig -p 2>/dev/null | awk '$1 ~ /^libcudnn.*[.]so[.]9$/ {print $NF}'
  ) || true
  sort -u <<<"$files" | xargs -r -d '\n' timeout 40 cat >/dev/null || true
  echo "reading $(sort -u <<<"$files" | grep -c .) of NVIDIA's libraries took $((SECONDS - start)) s"
}

row_starts() {
  pipeshard --version
  note "$(pipeshard --version | sed -n 1p)"
}

# tests NAME COMMAND...: the test program behind the command, if there is one.
tests() {
  local name=$1
  shift
  "$@" "$bundle/tests/$name" | tee "$work/tests"
}

# passes NAME: all tests of the program.
passes() {
  tests "$1" env || wrong "$(grep -c '^\[  FAILED  \].*ms)' "$work/tests") tests have failed: $(grep -m 1 Failure -A 3 "$work/tests" |
    paste -sd ' ' | cut -c 1-160)"
  if grep -q '^no cuDNN' "$work/tests"; then
    cannot_run "$(grep -m 1 '^no cuDNN' "$work/tests" | cut -c 1-120); what needs none: $(grep '^\[  PASSED  \]' "$work/tests" | sed 's/^\[ *PASSED *\] //')"
  fi
  note "$(grep -E '^\[==========\].* ran' "$work/tests" | sed 's/^\[=*\] //')"
}

row_kernels() { passes cuda_kernels_test; }

# Windows by the kernels of the module, which run where cuDNN has no way.
row_kernels_without_cudnn() {
  export PIPESHARD_CUDNN=off GTEST_FILTER='CudaKernels.Windows:CudaKernels.BatchNormalisation'
  passes cuda_kernels_test
}

# ONNX's cases and the gradients' finite differences, as on the CPU.
row_conformance() {
  export PIPESHARD_ONNX_SUITES=$bundle/tests/suites
  [ -d "$PIPESHARD_ONNX_SUITES/node" ] || cannot_run "the bundle was made without ONNX's cases"
  passes cuda_conformance_test
}

# What the examples' plans have the libraries compute, on small data: recorded, and replayed at once.
row_record() {
  local model file=$work/recorded_calls.safetensors plans=""
  for model in mlp gpt2 llama resnet; do
    for options in "--cluster 1x1" "--cluster 1x4 --stages uniform:1 --method tensor-parallel"; do
      plans+=${plans:+:}$work/record-$model-${#plans}.plan
      # shellcheck disable=SC2086
      pipeshard plan "$bundle/examples/$model.onnx" $options --microbatches 2 -o "${plans##*:}" || wrong "there is no plan of $model"
    done
  done
  export PIPESHARD_RECORD_PLANS=$plans PIPESHARD_RECORD_CALLS=$file PIPESHARD_RECORDED_CALLS=$file
  export PIPESHARD_RECORD_ABOUT="commit $commit, $(date -u +%F), driver $driver"
  "$bundle/tests/cuda_kernels_test" --gtest_filter=LibraryCalls.OfPlansAreRecorded | tee "$work/tests" || wrong "they were not recorded"
  "$bundle/tests/cuda_kernels_test" --gtest_filter=LibraryCalls.ThatAGpuHasMadeAreReplayed || wrong "they are not replayed"
  if grep -q '^recorded.*no cuDNN' "$work/tests"; then cannot_run "$(grep '^recorded' "$work/tests")"; fi
  note "$(grep '^recorded' "$work/tests")"
}

# validate MODEL WORKERS [OPTION...]: against one CPU.
validate() {
  local code options=(--cluster "1x$2" --device cuda --share-devices --steps 2 --microbatches 4 "${@:3}")
  [ "$2" = 1 ] || options+=(--stages uniform:4 --schedule 1f1b)
  code=$(code_of pipeshard validate "$bundle/examples/$1.onnx" "${options[@]}" -o "$work/$1-$2.plan")
  if [ "$code" != 0 ] && grep -q 'there is no kernel for this operator on this device' "$work/output"; then
    cannot_run "$(grep -m 1 -o "[^:]*: there is no kernel for this operator on this device" "$work/output")"
  fi
  if [ "$code" = 78 ] && grep -q 'transport ipc: ' "$work/output"; then
    cannot_run "$(grep -m 1 -o 'transport ipc: .*' "$work/output" | cut -c 1-160)"
  fi
  [ "$code" = 0 ] || wrong "code $code: $(grep -m 1 -E '^pipeshard:|FAIL' "$work/output" | cut -c 1-160)"
  grep -q '^PASS' "$work/output" || wrong "it does not say PASS"
  note "worst $(awk '$1 == "gradient" {print $3; exit}' "$work/output") of gradients, bound $(awk '$1 == "gradient" {print $4; exit}' "$work/output")$(grep -m 1 -o 'GPUs give each other .*' "$work/output" | cut -c 1-160 | sed 's/^/; /')"
}

row_validate_mlp_1() { validate mlp 1; }
row_validate_mlp_4() { validate mlp 4; }
row_validate_gpt2_1() { validate gpt2 1; }
row_validate_gpt2_4() { validate gpt2 4; }
# Of one GPU; which of the two the others have taken, they say.
row_validate_gpt2_4_staged() { validate gpt2 4 --transport staged; }
row_validate_gpt2_4_ipc() { validate gpt2 4 --transport ipc; }
row_validate_llama_1() { validate llama 1; }
row_validate_llama_4() { validate llama 4; }
row_validate_resnet_1() { validate resnet 1; }
row_validate_resnet_4() { validate resnet 4; }
# Where those fail and this passes, it is cuDNN's doing.
row_validate_resnet_without_cudnn() { PIPESHARD_CUDNN=off validate resnet 1; }

# The states of every optimizer, which the examples' own do not have.
row_validate_optimizers() {
  local optimizer code=0
  for optimizer in sgd:momentum=0.9 rmsprop:momentum=0.9 adam adamw adagrad adafactor lion lamb; do
    echo "optimizer $optimizer"
    (validate mlp 1 --optimizer "$optimizer") || code=$?
    [ $code -eq 0 ] || { note "$optimizer: $(tail -n 1 "$work/note")" && exit $code; }
  done
  note "8 optimizers"
}

# structure MODEL OPTION...: a published size without its weights, which are drawn; against one CPU. The stand-in would take hours:
# there the plan alone is made.
structure() {
  local code model=$bundle/examples/$1.onnx plan=$work/$1.plan
  shift
  pipeshard plan "$model" --weights random --cluster 1x1 "$@" -o "$plan" || wrong "there is no plan"
  [ -z "$standin" ] || cannot_run "it can be planned; the stand-in is too slow for it"
  code=$(code_of pipeshard validate "$plan" --device cuda --steps 1)
  [ "$code" = 0 ] || wrong "code $code: $(grep -m 1 -E '^pipeshard:|FAIL' "$work/output" | cut -c 1-160)"
  grep -q '^PASS' "$work/output" || wrong "it does not say PASS"
  note "worst $(awk '$1 == "gradient" {print $3; exit}' "$work/output") of gradients, bound $(awk '$1 == "gradient" {print $4; exit}' "$work/output")"
}

row_structure_gpt2_124m() { structure gpt2-124m --dim batch=2 --microbatches 2; }
row_structure_resnet50() { structure resnet50 --dim batch=8 --microbatches 2; }

# A process that ends in the middle ends the job, with code 69, and leaves none behind.
row_fault_kill() {
  local job worker code=0 tries most=10
  [ -z "$standin" ] || most=5
  pipeshard plan "$bundle/examples/mlp.onnx" --cluster 1x4 -o "$work/kill.plan"
  pipeshard run "$work/kill.plan" --steps 100000000 --device cuda --share-devices >"$work/kill.out" 2>"$work/kill.err" &
  job=$!
  until grep -q step "$work/kill.out"; do
    kill -0 $job || wrong "it has not begun: $(tail -n 1 "$work/kill.err")"
    sleep 0.2
  done
  worker=$(processes_with "$work/kill.plan --rank 2 ")
  [ -n "$worker" ] || wrong "no worker of rank 2 was found"
  kill -9 "$worker"
  SECONDS=0
  wait $job || code=$?
  cat "$work/kill.err"
  [ $SECONDS -le $most ] || wrong "it ended after $SECONDS s, not within $most"
  [ $code -eq 69 ] || wrong "code $code, not 69"
  for ((tries = 0; tries < 50; ++tries)); do
    [ -n "$(processes_with "$work/kill.plan ")" ] || break
    sleep 0.1
  done
  [ $tries -lt 50 ] || wrong "processes are left"
  note "code 69 within $SECONDS s, no process left"
}

# processes_with TEXT: of this text in the command line.
processes_with() {
  local file
  for file in /proc/[0-9]*/cmdline; do
    if tr '\0' ' ' <"$file" 2>/dev/null | grep -qF -- "$1"; then basename "$(dirname "$file")"; fi
  done
}

# Twice what the device has (an example takes 278 kB): code 83 before the first step.
row_fault_memory() {
  local code batch mib
  mib=$(memory_mib) || cannot_run "nobody says how much memory the GPU has"
  batch=$((mib * 1048576 / 139000))
  pipeshard plan "$bundle/examples/llama.onnx" --dim batch=$batch --microbatches 1 --cluster 1x1 --memory 4TiB -o "$work/memory.plan"
  code=$(code_of pipeshard run "$work/memory.plan" --steps 1 --device cuda)
  [ "$code" = 83 ] || wrong "code $code, not 83: $(tail -n 1 "$work/output" | cut -c 1-160)"
  note "code 83: $(grep -m 1 -o 'cannot get .*' "$work/output" | cut -c 1-120)"
}

# A label that the model does not have: the CPU's code and message.
row_fault_index() {
  local on_cpu on_cuda ids row
  ids=$(printf '%s, ' {1..15})
  for row in {1..8}; do
    printf '{"input_ids": [%s], "labels": [%s]}\n' "${ids}16" "${ids}$((row == 6 ? 999 : row))"
  done >"$work/tokens.jsonl"
  pipeshard plan "$bundle/examples/gpt2.onnx" --cluster 1x1 -o "$work/index.plan"
  on_cpu=$(code_of pipeshard run "$work/index.plan" --data "$work/tokens.jsonl" --steps 1)
  message_of >"$work/cpu_message"
  grep -q 'label 999' "$work/cpu_message" || wrong "the CPU does not tell of the label: code $on_cpu"
  on_cuda=$(code_of pipeshard run "$work/index.plan" --data "$work/tokens.jsonl" --steps 1 --device cuda)
  [ "$on_cuda" = "$on_cpu" ] || wrong "code $on_cuda, and $on_cpu on the CPU: $(message_of | cut -c 1-120)"
  message_of | cmp -s - "$work/cpu_message" || wrong "another message than the CPU's: $(message_of | cut -c 1-160)"
  note "code $on_cuda, the CPU's message"
}

# Of the last command, without the process.
message_of() { grep -m 1 '^pipeshard: ' "$work/output" | sed 's/ (host [^)]*)//'; }

# Where compute-sanitizer is; nothing, where there is none.
sanitizer() {
  command -v compute-sanitizer /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda/compute-sanitizer/compute-sanitizer | sed -n 1p || true
}

# Of the module's own kernels: those of NVIDIA's libraries, and the calls by which these try what a driver has, are not ours to mend.
# A window that slides over 65,536 images is 65,536 products there.
sanitize() {
  [ -z "$standin" ] || cannot_run "the stand-in looks itself; compute-sanitizer needs a GPU"
  local tool
  tool=$(sanitizer)
  [ -x "$tool" ] || cannot_run "there is no compute-sanitizer"
  export GTEST_FILTER='-Cudnn.LeavesConvolutions*:LibraryCalls.*:*EveryOneWasTried*'
  tests cuda_kernels_test "$tool" --tool "$1" --error-exitcode 99 --report-api-errors no --kernel-regex kns=pipeshard || wrong "$(grep -m 1 -E '^=+ (ERROR SUMMARY|[A-Z].*(Invalid|Uninit|race|Barrier))' "$work/tests" | cut -c 1-160)"
  grep -q 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "$work/tests" || wrong "it says no summary without errors"
  note "$(grep 'SUMMARY' "$work/tests" | tail -n 1 | sed 's/^=* //')"
}

row_sanitize_memcheck() { sanitize memcheck; }
row_sanitize_initcheck() { sanitize initcheck; }
row_sanitize_synccheck() { sanitize synccheck; }
row_sanitize_racecheck() { sanitize racecheck; }
