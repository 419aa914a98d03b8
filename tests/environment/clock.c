/* Preloaded into every process of the bed: adds the int64 of seconds in the file $BED_CLOCK to the
 * wall clock. A jump is effective at once, and monotonic clocks do not change, as when a clock is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock)(clockid_t, struct timespec *);
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static const volatile int64_t *offset;

__attribute__((constructor)) static void prepare(void)
{
    const char *path = getenv("BED_CLOCK");
    int file;

    real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    /* The unversioned symbol may use another structure, from before 2003. */
    real_wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_wait)
        real_wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *shared = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED)
        offset = shared;
    close(file);
}

static int64_t moved(void)
{
    return offset ? *offset : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!real_clock)
        prepare();
    int answer = real_clock(clock, now);
    if (!answer && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += moved();
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where)
{
    struct timespec exact;

    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    if (where)
        *where = exact.tv_sec;
    return exact.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

/* The kernel waits by its own clock. A deadline of a monotonic clock is the host's uptime, which is
 * below a thousand million seconds; one of the wall clock is above. */
static int wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex,
                      const struct timespec *deadline)
{
    struct timespec mine = *deadline;

    if (!real_wait)
        prepare();
    if (mine.tv_sec > 1000000000)
        mine.tv_sec -= moved();
    return real_wait(condition, mutex, &mine);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline)
{
    return wait_until(condition, mutex, deadline);
}

/* For librdkafka: the C library's own version does not call the function above. */
int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict deadline)
{
    int answer = wait_until((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, deadline);

    return answer == 0 ? thrd_success : answer == ETIMEDOUT ? thrd_timedout : thrd_error;
}
