/* Sends of collectives (gloo's) that take longer, for tests: preloaded into a worker. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t writev(int file, const struct iovec* pieces, int count) {
  static ssize_t (*plain)(int, const struct iovec*, int);
  if (!plain) plain = (ssize_t (*)(int, const struct iovec*, int))dlsym(RTLD_NEXT, "writev");
  size_t bytes = 0;
  for (int n = 0; n < count; n++) bytes += pieces[n].iov_len;
  struct stat about;
  if (bytes >= 512 && !fstat(file, &about) && S_ISSOCK(about.st_mode)) usleep(atoi(getenv("LATE_SENDS")));
  return plain(file, pieces, count);
}
