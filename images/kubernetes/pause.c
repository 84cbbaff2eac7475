/*
 * The process that keeps a pod's namespaces open. As process 1 of a pod that shares its process namespace it
 * also collects the children that others left. With -v it names itself and ends: kubeadm runs that as the
 * health check before an upgrade.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef VERSION
#error "VERSION is not defined"
#endif

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void collect(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0) {
            printf("pause %s\n", VERSION);
            return 0;
        }
    }
    struct sigaction on_end = {.sa_handler = end};
    struct sigaction on_child = {.sa_handler = collect, .sa_flags = SA_NOCLDSTOP};
    if (sigaction(SIGINT, &on_end, NULL) < 0 || sigaction(SIGTERM, &on_end, NULL) < 0 ||
        sigaction(SIGCHLD, &on_child, NULL) < 0) {
        perror("pause: sigaction");
        return 1;
    }
    for (;;) {
        pause();
    }
}
