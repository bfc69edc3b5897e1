module polybus.example/client

go 1.19
