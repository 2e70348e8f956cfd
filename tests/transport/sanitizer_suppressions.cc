// ThreadSanitizer sees the memory that the threads of libzmq and of Gloo share, but not how these
// uninstrumented libraries (and libsodium, which decrypts into that memory) order their accesses: Gloo counts
// the references to a buffer that its thread has, and whoever frees the buffer (Small) waits for them. Link
// this into test programs that use control or Gloo.
#if defined(__SANITIZE_THREAD__)
#define PIPESHARD_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PIPESHARD_THREAD_SANITIZER 1
#endif
#endif

#ifdef PIPESHARD_THREAD_SANITIZER
extern "C" const char* __tsan_default_suppressions() {
  return "race:libzmq.so\nrace:libsodium.so\ncalled_from_lib:libzmq.so\nrace:libgloo.so\n"
         "race:pipeshard::mesh::Small::~Small\n";
}
#endif
